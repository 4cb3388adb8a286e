"""Language models: a call is a context whose prompt grows part by part and is then continued.

Owns the contexts of one query's calls. Partial prefillings hold pages; the last part of a prompt is
computed by the command that continues it, so that nothing waits between the two; that command has
the depth of the part, which comes first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api import Model
from quire.programs.api.grammar import json_schema
from quire.programs.chat.template import chat_template
from quire.programs.sdk import Context, Generated, Generation
from quire.programs.workflow.json_elements import JsonElements
from quire.programs.workflow.primitives import Op, Primitive


class ModelCall:
    """One call of the model: its prompt so far, and its answer as it comes."""

    def __init__(self, model: Model, primitive: Primitive, thread: int) -> None:
        self.content = ""
        self.context = Context(model, thread=thread)
        self.elements = JsonElements()
        self._system: str | None = primitive.config["system"]
        self._pieces: AsyncIterator[str] | None = None
        self._generation: Generation | None = None

    async def prefill_beginning(self) -> None:
        """Compute the prompt as far as it is known. The last token waits: it may merge with what
        follows."""
        text = self._rendered(add_generation_prompt=False, continue_final_message=True)
        await self.context.revise(text).prefill()

    def complete(self) -> None:
        """The prompt is known; it has the tokens of a prompt that was never split."""
        self.context.revise(self._rendered(add_generation_prompt=True))

    def _rendered(self, **options: Any) -> str:
        messages = [{"role": "user", "content": self.content}]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": self._system})
        return chat_template(self.context.model.served).render(messages, **options)

    async def answer(self, config: Mapping[str, Any]) -> Generated:
        """The whole answer."""
        async with self._generate(config) as generation:
            return await generation

    async def element(self, number: int, config: Mapping[str, Any]) -> Any:
        """Element ``number`` of the answer, as soon as it is complete."""
        if self._generation is None:
            self._generation = self._generate(config)
            self._pieces = aiter(self._generation)
        assert self._pieces is not None, "it begins with the first element"
        while len(self.elements.elements) <= number and not self.elements.ended:
            piece = await anext(self._pieces, None)
            if piece is None:
                break
            self.elements.feed(piece)
        if number >= len(self.elements.elements):
            raise _cut_off(await self._generation, config)
        return self.elements.elements[number]

    async def end(self) -> None:
        """Wait until the model has ended its answer."""
        if self._generation is not None:
            await self._generation

    def _generate(self, config: Mapping[str, Any]) -> Generation:
        schema = config["schema"]
        grammar = None if schema is None else json_schema(schema)
        return self.context.generate(max_tokens=config["max_tokens"], grammar=grammar)


class ModelRunner:
    """``Runner`` of an engine of kind llm."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._calls: list[ModelCall] = []

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if primitive.op is Op.DECODING:
            return {"out": await self._decoded(primitive, inputs["state"])}
        if primitive.op is Op.PARTIAL_DECODING:
            return await self._element(primitive, inputs["state"])
        return {"state": await self._prefilled(primitive, inputs)}

    def close(self) -> None:
        for call in self._calls:
            call.context.drop()
        self._calls.clear()

    async def _prefilled(self, primitive: Primitive, inputs: Mapping[str, Any]) -> ModelCall:
        call: ModelCall | None = inputs.get("state")
        if call is None:
            call = ModelCall(self._model, primitive, thread=len(self._calls))
            self._calls.append(call)
        call.context.set_depth(primitive.depth, invocation=primitive.number)
        for part in primitive.parts:
            value = part.text if part.name is None else inputs[part.name]
            joined = value if isinstance(value, str) else primitive.config["separator"].join(value)
            call.content += joined
        if primitive.op is Op.PARTIAL_PREFILLING:
            await call.prefill_beginning()
        else:
            call.complete()
        return call

    async def _decoded(self, primitive: Primitive, call: ModelCall) -> Any:
        config = primitive.config
        generated = await call.answer(config)
        call.context.drop()
        if config["schema"] is None:
            return _behind(config["answer_after"], generated.text)
        call.elements.feed(generated.text)
        if not call.elements.ended:
            raise _cut_off(generated, config)
        return call.elements.elements

    async def _element(self, primitive: Primitive, call: ModelCall) -> Mapping[str, Any]:
        element = await call.element(primitive.first, primitive.config)
        if primitive.first == primitive.config["elements"] - 1:
            await call.end()
            call.context.drop()
        return {"out": [element], "state": call}


def _behind(mark: str | None, text: str) -> str:
    """The text behind the last ``mark``, or all of it if the model has not written it."""
    found, _, answer = text.rpartition(mark) if mark else ("", "", text)
    return (answer if found or answer != text else text).strip()


def _cut_off(generated: Generated, config: Mapping[str, Any]) -> InvalidArgument:
    return InvalidArgument(
        f"the model ended its JSON after {len(generated.token_ids)} tokens "
        f"({generated.finish_reason}): raise max_tokens, which is {config['max_tokens']}"
    )
