"""Language models: a call is a context whose prompt grows part by part and is then continued.

Owns the contexts of one query's calls. Partial prefillings hold pages; the last part of a prompt is
computed by the command that continues it, so that nothing waits between the two; that command has
the depth of the part, which comes first.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

from quire.core.errors import EngineFault, InvalidArgument, NeverWithinQuota, QueuePoisoned
from quire.programs.api import Model
from quire.programs.api.grammar import json_schema
from quire.programs.chat.answer import AnswerParser
from quire.programs.chat.dialects import marker_tokens
from quire.programs.chat.messages import for_template
from quire.programs.chat.pieces import whole_answer
from quire.programs.chat.reasoning import THINK_START
from quire.programs.chat.template import chat_template, dialect_of
from quire.programs.sdk import Context, Generated, Generation
from quire.programs.workflow.execution.answer_text import FinalAnswerText, SaidText, behind
from quire.programs.workflow.execution.json_elements import JsonElements
from quire.programs.workflow.execution.scheduler import LOSSES
from quire.programs.workflow.execution.watching import Watcher
from quire.programs.workflow.graphs.primitives import PREFILLS, Op, Primitive
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.runners.calls import StreamedAnswers, part_text, tell
from quire.programs.workflow.sharing import Sharing
from quire.programs.workflow.speculation import Run

_REFUSALS = (NeverWithinQuota, QueuePoisoned)
"""The errors of an answer that began ahead, if tokens are bounded: that of its own command, and
that of what stands behind it in its queue."""


class ModelCall:
    """One call of the model: its prompt so far, and its answer as it comes."""

    def __init__(self, model: Model, primitive: Primitive, thread: int) -> None:
        self._texts: dict[str, list[tuple[int, str]]] = {}
        """What each prefilling has added, by its id: one that is repeated adds it once."""
        self.context = Context(model, thread=thread, priority=primitive.priority)
        self.ahead: Generation | None = None
        """An answer that was begun before it was known that it is needed."""
        self.elements = JsonElements()
        self._known: list[Any] = []
        """The elements of an earlier generation, whose engine or node was lost."""
        self._has_begun = False
        self._system: str | None = primitive.config["system"]
        self._tools: list[Any] = primitive.config["tools"]
        self._turns: list[dict[str, Any]] = primitive.config["turns"]
        self._pieces: AsyncIterator[str] | None = None
        self._generation: Generation | None = None

    def fork(self, primitive: Primitive) -> ModelCall:
        """Make a call whose prompt begins like this one's and continues with ``primitive``."""
        forked = copy(self)
        forked._texts = dict(self._texts)
        forked.context = self.context.fork().set_priority(primitive.priority)
        return forked

    def add(self, primitive: Primitive, texts: list[tuple[int, str]]) -> None:
        """Add ``texts``, each to the message of its number, after those of earlier prefillings."""
        self._texts[primitive.id] = texts

    async def prefill_beginning(self) -> None:
        """Compute the prompt as far as it is known. The last token waits: it may merge with what
        follows."""
        is_open = bool(self._messages()[-1]["content"].strip())
        text = self._rendered(add_generation_prompt=False, continue_final_message=is_open)
        await self.context.revise(text).prefill()

    def complete(self) -> None:
        """Complete the prompt; it has the tokens of a prompt that was never split."""
        self.context.revise(self._rendered(add_generation_prompt=True))

    def _messages(self) -> list[dict[str, Any]]:
        """Return the conversation as far as it is known."""
        contents: dict[int, str] = {}
        for texts in self._texts.values():
            for turn, text in texts:
                contents[turn] = contents.get(turn, "") + text
        told = [{"role": "user"}, *self._turns]
        messages = [{**told[turn], "content": text} for turn, text in contents.items()]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": self._system})
        return messages

    def _rendered(self, **options: Any) -> str:
        served = self.context.model.served
        messages = for_template(self._messages(), dialect_of(served))
        return chat_template(served).render(messages, tools=self._tools or None, **options)

    @property
    def identity(self) -> list[Any]:
        """All that the answer depends on, beside its bounds: the model and the prompt."""
        served = self.context.model.served
        prompt = self._rendered(add_generation_prompt=True)
        return [served.id, served.adapter, served.info.content, prompt]

    def turn(self, generated: Generated) -> str:
        """Return the model's message and its tool calls as JSON."""
        count = sum(len(turn.get("tool_calls", ())) for turn in self._turns)
        numbers = itertools.count(count + 1)
        parser = AnswerParser(
            tools=frozenset(tool["function"]["name"] for tool in self._tools),
            reasoning=True,
            starts_in_reasoning=self._rendered().rstrip().endswith(THINK_START),
            dialect=dialect_of(self.context.model.served),
            new_id=lambda: f"call{next(numbers):05d}",
        )
        answer = whole_answer([*parser.feed(generated.text), *parser.finish()])
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.calls]
        return json.dumps({"content": answer.content, "calls": calls})

    async def answer(self, config: Mapping[str, Any]) -> Generated:
        """Generate and return the whole answer."""

        async def generated() -> Generated:
            async with self._begin(config, stream=False) as generation:
                return await generation

        return await self._anew_if_refused(generated)

    async def told(self, config: Mapping[str, Any], output: str, watcher: Watcher) -> Generated:
        """Generate and return the whole answer; ``watcher`` receives its text as it comes."""
        is_again = self._has_begun and self.ahead is None
        text = FinalAnswerText(config["answer_after"], begins_again=is_again)

        async def generated() -> Generated:
            async with self._begin(config) as generation:
                async for piece in generation:
                    await tell(watcher, output, text.feed(piece))
                await tell(watcher, output, text.end())
                return await generation

        return await self._anew_if_refused(generated)

    async def _anew_if_refused(self, generated: Callable[[], Awaitable[Generated]]) -> Generated:
        """Generate, and once more if an answer that began ahead is refused: a program whose tokens
        are bounded generates none in spare time."""
        began_ahead = self.ahead is not None
        try:
            return await generated()
        except _REFUSALS:
            if not began_ahead:
                raise
        return await generated()

    async def answer_ahead(self, config: Mapping[str, Any]) -> Generated:
        """Generate the whole answer ahead; ``answer`` or ``told`` then continues from it."""
        self.ahead = self._begin(config)
        return await self.ahead

    def drop_ahead(self) -> int:
        """Cancel an answer that is not needed, and return the number of tokens written."""
        generation = self.ahead or self._generation
        if generation is None:
            return 0
        generation.cancel()
        return generation.num_tokens

    def recall(self, element: Any) -> None:
        """Note the next element of an earlier answer to this prompt, which is in use already."""
        self._known.append(element)

    async def element(self, number: int, config: Mapping[str, Any]) -> Any:
        """Return element ``number`` of the answer as soon as it is complete.

        Raises:
            EngineFault: the engine was lost, and the new answer has other elements before this one.
        """
        try:
            await self._read_until(number, config)
        except (*LOSSES, *_REFUSALS):
            self._generation = None
            raise
        found = self.elements.elements
        handed_on = self._known[:number]
        if handed_on != found[: len(handed_on)]:
            raise EngineFault(
                "the model's answer is another one since its engine was lost, and elements of the "
                "first one are in use: ask again, of a query with an id under another one"
            )
        return found[number]

    async def _read_until(self, number: int, config: Mapping[str, Any]) -> None:
        if self._generation is None:
            if len(self.elements.elements) > len(self._known):
                self._known = self.elements.elements
            self.elements = JsonElements()
            self._generation = self._begin(config)
            self._pieces = aiter(self._generation)
        assert self._pieces is not None, "it begins with the generation"
        while len(self.elements.elements) <= number and not self.elements.ended:
            piece = await anext(self._pieces, None)
            if piece is None:
                break
            self.elements.feed(piece)
        if number >= len(self.elements.elements):
            raise _cut_off(await self._generation, config)

    async def end(self) -> None:
        """Wait until the model has ended its answer, whose elements are complete."""
        if self._generation is not None:
            with suppress(*LOSSES):
                await self._generation

    def _begin(self, config: Mapping[str, Any], *, stream: bool = True) -> Generation:
        """Begin the answer, or begin it again from the prompt if an engine was lost."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None and not ahead.has_failed:
            return ahead
        if self._has_begun:
            self.complete()
        self._has_begun = True
        return self._generate(config, stream)

    def _generate(self, config: Mapping[str, Any], stream: bool) -> Generation:
        schema = config["schema"]
        grammar = None if schema is None else json_schema(schema)
        shown: frozenset[int] = frozenset()
        if config["tools"]:
            model = self.context.model
            shown = marker_tokens(dialect_of(model.served), model.tokenizer, tools=True)
        return self.context.generate(
            max_tokens=config["max_tokens"], grammar=grammar, shown=shown, stream=stream
        )


class LanguageModelRunner:
    """``PrimitiveRunner`` of an engine of kind llm. ``models``: by the name that a component gives,
    or None for components that give none."""

    def __init__(
        self,
        models: Mapping[str | None, Model],
        streamed: StreamedAnswers | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._models, self._streamed, self._sharing = models, streamed, sharing
        self._calls: dict[str, ModelCall] = {}
        """The calls by the id of their first prefilling."""
        self._ahead: dict[ModelCall, None] = {}
        self._threads = itertools.count()

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if primitive.op is Op.DECODING:
            return {"out": await self._decoded(primitive, inputs["state"])}
        if primitive.op is Op.PARTIAL_DECODING:
            return await self._element(primitive, inputs["state"])
        return {"state": await self._prefilled(primitive, inputs)}

    async def close(self) -> None:
        for call in (*self._calls.values(), *self._ahead):
            call.context.drop()
        self._calls.clear()
        self._ahead.clear()

    # -- running ahead ---------------------------------------------------------------------------

    async def run_ahead(self, run: Run) -> Mapping[str, Any]:
        """See ``AheadRunner``. Each completed prompt is a call of its own."""
        primitive, inputs = run.primitive, run.inputs
        if primitive.op not in PREFILLS:
            call: ModelCall = inputs["state"]
            run.held = call
            if primitive.op is Op.PARTIAL_DECODING:
                element = await call.element(primitive.first, primitive.config)
                return {"out": [element], "state": call}
            generated = await call.answer_ahead(primitive.config)
            return {"out": _outcome(primitive, call, generated)}
        before: ModelCall | None = inputs.get("state")
        if before is None:
            call = ModelCall(self._model_of(primitive), primitive, thread=next(self._threads))
        else:
            call = before.fork(primitive)
        run.held = call
        self._ahead[call] = None
        if run.is_kept:
            self.keep(run)
        await _extend(call, primitive, inputs)
        return {"state": call}

    def keep(self, run: Run) -> None:
        call: ModelCall | None = run.held
        if call is None or run.primitive.op not in PREFILLS:  # it has failed, or its prompt is kept
            return
        call.context.set_priority(0)
        before: ModelCall | None = run.inputs.get("state")
        if before is not None and before is not call:
            before.context.drop()

    def drop(self, run: Run) -> int:
        call: ModelCall | None = run.held
        if call is None:
            return 0
        if run.primitive.op not in PREFILLS:
            return 0 if run.primitive.first else call.drop_ahead()
        call.context.drop()
        self._ahead.pop(call, None)
        return 0

    async def _prefilled(self, primitive: Primitive, inputs: Mapping[str, Any]) -> ModelCall:
        call: ModelCall | None = inputs.get("state")
        if call is None:
            call = self._calls.get(primitive.id)
        if call is None:
            call = ModelCall(self._model_of(primitive), primitive, thread=next(self._threads))
            self._calls[primitive.id] = call
        await _extend(call, primitive, inputs)
        return call

    def _model_of(self, primitive: Primitive) -> Model:
        """Return the model of ``primitive``. The models that a query names are known before it
        begins; a grown component may name others."""
        name: str | None = primitive.config["model"]
        if name not in self._models:
            served = ", ".join(one for one in self._models if one is not None)
            raise InvalidArgument(
                f"{primitive.node} names the model {name!r}; the node serves {served}: name one "
                "of them",
                param=f"{primitive.node}.model",
            )
        return self._models[name]

    async def _decoded(self, primitive: Primitive, call: ModelCall) -> Any:
        """Generate the answer, or share an equal one: sampling takes the most likely token, so
        equal prompts have equal answers."""
        if self._sharing is None:
            return await self._asked(primitive, call)
        config = primitive.config
        settings = [config[name] for name in ("max_tokens", "schema", "answer_after", "tools")]
        depends = ["answer", call.identity, primitive.outputs["out"], settings]
        asked = partial(self._asked, primitive, call)
        made = await self._sharing.once(primitive, depends, asked)
        if primitive.id in self._sharing.how:
            call.context.drop()
            if self._streamed is not None and primitive.id in self._streamed.outputs:
                output = self._streamed.outputs[primitive.id]
                await self._streamed.watcher.said(output, SaidText(made))
        return made

    async def _asked(self, primitive: Primitive, call: ModelCall) -> Any:
        config = primitive.config
        if self._streamed is not None and primitive.id in self._streamed.outputs:
            output = self._streamed.outputs[primitive.id]
            generated = await call.told(config, output, self._streamed.watcher)
        else:
            generated = await call.answer(config)
        call.context.drop()
        return _outcome(primitive, call, generated)

    async def _element(self, primitive: Primitive, call: ModelCall) -> Mapping[str, Any]:
        element = await call.element(primitive.first, primitive.config)
        if primitive.first == primitive.config["elements"] - 1:
            await call.end()
            call.context.drop()
        return {"out": [element], "state": call}


def _outcome(primitive: Primitive, call: ModelCall, generated: Generated) -> Any:
    """Return the output of ``primitive`` for a whole answer."""
    config = primitive.config
    if config["tools"]:
        return call.turn(generated)
    if config["schema"] is None:
        answer = behind(config["answer_after"], generated.text)
        return [answer] if primitive.outputs["out"] is ValueType.TEXTS else answer
    elements = JsonElements()
    elements.feed(generated.text)
    if not elements.ended:
        raise _cut_off(generated, config)
    return elements.elements


async def _extend(call: ModelCall, primitive: Primitive, inputs: Mapping[str, Any]) -> None:
    """Add the parts of the prompt that ``primitive`` has to ``call``."""
    call.context.set_depth(**primitive.place)
    call.add(primitive, _prompt_texts(primitive, inputs))
    if primitive.op is Op.PARTIAL_PREFILLING:
        await call.prefill_beginning()
    else:
        call.complete()


def _prompt_texts(primitive: Primitive, inputs: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the texts that a prefilling adds to its prompt, each with its message's number."""
    return [(part.turn, part_text(primitive, part, inputs)) for part in primitive.parts]


def _cut_off(generated: Generated, config: Mapping[str, Any]) -> InvalidArgument:
    return InvalidArgument(
        f"the model ended its JSON after {len(generated.token_ids)} tokens "
        f"({generated.finish_reason}): raise max_tokens, which is {config['max_tokens']}"
    )
