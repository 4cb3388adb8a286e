"""The agent: calls of one turn run side by side, and their results are in the next prompt."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from programs_node import level

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.workflow import Graph, workflow
from quire.programs.workflow.applications import agent
from quire.testing.local_node import scripted_node

QUERY = json.dumps({"question": "Which?"})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Both:
    """Two tools, each of which ends only when the other one has begun."""

    def __init__(self) -> None:
        self._began = {"left": asyncio.Event(), "right": asyncio.Event()}

    async def left(self, text: str) -> str:
        """Needs right."""
        self._began["left"].set()
        await self._began["right"].wait()
        return f"{{{text}}}"

    async def right(self, text: str) -> str:
        """Needs left."""
        self._began["right"].set()
        await self._began["left"].wait()
        return text.upper()


async def test_calls_of_one_turn_run_side_by_side_and_the_answer_follows() -> None:
    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        if "<|tool|>" in prompt:
            return "Both are there.<|end|>"
        return f"{call('left', text='a')}\n{call('right', text='b')}<|end|>"

    both = Both()
    async with scripted_node(answer, page_size=4) as local:
        result = await local.run(workflow(agent([both.left, both.right])), QUERY)
        assert result == {"answer": "Both are there."}
        assert (await level(local))["held"] == 0
    assert seen[-1].index("{a}") < seen[-1].index("B"), "in the order of the calls"
    assert seen[-1].startswith(seen[0].removesuffix("<|assistant|>"))


async def test_a_failing_and_an_unknown_tool_are_told_to_the_model() -> None:
    def broken(text: str) -> str:
        raise ValueError("out of order")

    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        if "out of order" in prompt:
            return "No.<|end|>"
        return f"{call('broken', text='a')}\n{call('broken')}<|end|>"

    async with scripted_node(answer, page_size=4) as local:
        assert await local.run(workflow(agent([broken])), QUERY) == {"answer": "No."}
    assert "error: out of order" in seen[-1]
    assert "error: broken: Object missing required field `text`" in seen[-1]


async def test_rounds_are_bounded_and_each_sees_those_before() -> None:
    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return f"{call('add', a=1, b=prompt.count('<|tool|>'))}<|end|>"

    async with scripted_node(answer, page_size=4) as local:
        with pytest.raises(ProgramFailed, match="act: has grown 3 rounds"):
            await local.run(workflow(agent(max_rounds=3)), QUERY)
        assert (await level(local))["held"] == 0
    assert [prompt.count('"result"') for prompt in seen[-4:]] == [0, 1, 2, 3]


def test_an_agent_is_explained_and_refuses_tools_without_types() -> None:
    graph = Graph.optimize(agent(), {"question": "Which?"})
    assert [note.where for note in graph.notes if note.rule == "growth"] == ["act"]

    def untyped(text):  # type: ignore[no-untyped-def]
        return text

    with pytest.raises(InvalidArgument, match="parameter 'text' has no type hint"):
        agent([untyped])


async def test_tools_with_effects_run_in_the_order_of_their_calls() -> None:
    order: list[str] = []

    async def write(text: str) -> str:
        for _ in range(20 if text == "a" else 0):
            await asyncio.sleep(0)
        order.append(text)
        return "ok"

    def answer(prompt: str) -> str:
        if "<|tool|>" in prompt:
            return "Done.<|end|>"
        return "\n".join(call("write", text=text) for text in "abc") + "<|end|>"

    async with scripted_node(answer, page_size=4) as local:
        await local.run(workflow(agent([write], effects=["file"])), QUERY)
    assert order == ["a", "b", "c"]
