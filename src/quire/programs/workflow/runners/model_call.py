"""``ModelCall``: one call of a language model, from the first part of its prompt to its answer.

Owns the context of the call, whose pages hold the prompt as far as it is known. The last part of a
prompt is computed by the command that continues it, so that nothing waits between the two; that
command has the depth of the part, which comes first.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
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
from quire.programs.workflow.execution.answer_text import FinalAnswerText
from quire.programs.workflow.execution.json_elements import JsonElements
from quire.programs.workflow.execution.scheduler import LOSSES
from quire.programs.workflow.execution.watching import Watcher
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.runners.calls import tell

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
            raise cut_off(await self._generation, config)

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


def cut_off(generated: Generated, config: Mapping[str, Any]) -> InvalidArgument:
    """Return the error for an answer whose JSON ended before its schema was satisfied."""
    return InvalidArgument(
        f"the model ended its JSON after {len(generated.token_ids)} tokens "
        f"({generated.finish_reason}): raise max_tokens, which is {config['max_tokens']}"
    )
