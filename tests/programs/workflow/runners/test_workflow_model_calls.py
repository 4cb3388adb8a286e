"""One call of a model: what is computed again when its engine is lost, and what it streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from programs_node import level
from workflow_expansion import QUESTION, answer, expansion

from quire.core.actions import Action
from quire.core.calls import Issue
from quire.core.commands import Decode
from quire.core.errors import EngineLost, ProgramFailed
from quire.core.events import Called, Event
from quire.programs.workflow import (
    PrimitiveStep,
    StepLog,
    workflow,
)
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.runners.model_call import ModelCall
from quire.programs.workflow.running import run_query
from quire.testing import FakeEngine, FakeTokenizer, LocalNode, ScriptedModel, fake_pool
from quire.testing.local_node import scripted_node


def node() -> LocalNode:
    return scripted_node(answer, page_size=4)


class Losing(StepLog):
    """Loses the node's engine, with all that is in flight, at the end of some steps and behind the
    first texts of the answer."""

    reads_text = True

    def __init__(
        self, local: LocalNode, at: set[str], again: Callable[[str], str] | None = None
    ) -> None:
        """``again``: what the engine answers that is started then."""
        super().__init__()
        self._local, self._at = local, at
        self._again = again or long_answer
        self.texts: list[SaidText] = []

    async def ended(self, step: PrimitiveStep) -> None:
        await super().ended(step)
        if step.primitive.id in self._at:
            self._lose()

    async def said(self, output: str, said: SaidText) -> None:
        self.texts.append(said)
        if len(self.texts) <= 2:
            self._lose()

    def _lose(self) -> None:
        (number,) = self._local.harness.engines
        self._local.harness.lose_engine(number)
        script = ScriptedModel(self._again, FakeTokenizer())
        again = FakeEngine(fake_pool(page_size=4, num_blocks=1024), script=script)
        self._local.harness.start_engine(number, again)


LONG = ("word " * 40).strip()


def long_answer(prompt: str) -> str:
    """Of a prompt that ends as prompts do."""
    if not prompt.endswith("<|assistant|>"):
        return "Answer: it begins in the middle<|end|>"
    return answer(prompt) if "Expand" in prompt else f"Answer: {LONG}<|end|>"


async def test_a_model_that_is_lost_on_the_way_answers_again() -> None:
    async with scripted_node(long_answer, page_size=4) as local:
        log = Losing(local, {"expand.decode.0", "last.prefill.0"})

        async def main(api: Any) -> Any:
            return await run_query(api, expansion(), {"question": QUESTION}, watcher=log)

        assert await local.run(main) == {"answer": LONG}
        assert (await level(local))["held"] == 0
    assert [one.id for one in log.repeated] == ["expand.decode.0", "last.decode"]
    (again,) = [place for place, said in enumerate(log.texts) if said.begins_again]
    assert again > 0
    assert "".join(said.text for said in log.texts[again:]) == LONG


def elements(first: str) -> Callable[[str], str]:
    """The first element of the model's answer, long before the second one."""
    return lambda prompt: json.dumps([first, LONG]) + "<|end|>"


async def test_an_answer_that_is_another_one_is_not_mixed_with_the_first() -> None:
    async with scripted_node(elements("a"), page_size=4) as local:
        log = Losing(local, {"expand.decode.0"}, elements("another"))

        async def main(api: Any) -> Any:
            return await run_query(api, expansion(), {"question": QUESTION}, watcher=log)

        with pytest.raises(ProgramFailed, match="another one since its engine was lost"):
            await local.run(main)
        assert (await level(local))["held"] == 0


async def test_a_prefilling_that_is_lost_is_repeated_in_its_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one of each prompt is lost behind its computation."""
    prefill, lost, calls = ModelCall.prefill_beginning, set[str](), set[int]()

    async def lossy(call: ModelCall) -> None:
        calls.add(id(call))
        await prefill(call)
        if str(call._texts) not in lost:
            lost.add(str(call._texts))
            raise EngineLost("gone")

    monkeypatch.setattr(ModelCall, "prefill_beginning", lossy)
    async with scripted_node(answer, page_size=4) as local:
        log = StepLog()

        async def main(api: Any) -> Any:
            return await run_query(api, expansion(), {"question": QUESTION}, watcher=log)

        assert await local.run(main) == {"answer": "Kabo."}
        assert (await level(local))["held"] == 0
    assert log.repeated, "nothing was lost"
    assert len(calls) == 1, "a repeated prefilling made a context of its own"


async def test_an_answer_streams_only_if_something_begins_with_a_part_of_it() -> None:
    async with node() as local:
        streams: list[bool] = []
        post = local.harness.post

        def noted(event: Event) -> list[Action]:
            if isinstance(event, Called) and isinstance(event.call, Issue):
                decodes = [one for one in event.call.commands if isinstance(one, Decode)]
                streams.extend(one.stream for one in decodes if one.stop.max_tokens)
            return post(event)

        local.harness.post = noted  # type: ignore[method-assign]
        await local.run(workflow(expansion()), json.dumps({"question": QUESTION}))
    assert streams == [True, False], "the elements of the expansion, then the whole answer"
