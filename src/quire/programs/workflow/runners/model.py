"""Language models: the runner of an engine of kind llm.

Owns the calls of one query: which prompt a primitive begins or extends, which answer it asks for,
and which calls run ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api import Model
from quire.programs.sdk import Generated
from quire.programs.workflow.execution.answer_text import SaidText, behind
from quire.programs.workflow.execution.json_elements import JsonElements
from quire.programs.workflow.graphs.primitives import PREFILLS, Op, Primitive
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.runners.calls import StreamedAnswers, part_text
from quire.programs.workflow.runners.model_call import ModelCall, cut_off
from quire.programs.workflow.sharing import Sharing
from quire.programs.workflow.speculation import Run


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
        raise cut_off(generated, config)
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
