"""The shipped programs outlive their engine: lost anywhere, they give the answer that they would
have given.

Those that need more than one engine and its memory (children, an encoder) are tested on a whole
node, in ``tests/node/programs/restarting/test_node_library_restarts.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from library_args import LIBRARY_ARGS
from programs_node import node_of, node_saying
from replay_node import Restartable, lose_engine, threads_at_once, turns

from quire.programs.library import LIBRARY
from quire.testing import LocalNode

Answer = Callable[[str], str]

NUM_PLACES = 4
ON_A_WHOLE_NODE = {"codeact", "retrieval", "swarm"}


def acting(prompt: str) -> str:
    """Looks something up, computes, and answers."""
    if prompt.endswith("<|assistant|>"):
        return "Thought: Look.\nAction: lookup(Kabo, age)\nObservation:"
    if prompt.endswith("Observation: 31\n"):
        return "Thought: Add.\nAction: calc(31+5)\nObservation:"
    return "Thought: I know.\nAnswer: 36<|end|>"


def calling(prompt: str) -> str:
    if "<|tool|>" in prompt:
        return "Noon there.<|end|>"
    return '<tool_call>{"name": "get_time", "arguments": {"city": "Lima"}}</tool_call><|end|>'


def outlining(prompt: str) -> str:
    if "List" in prompt.rpartition("<|user|>")[2]:
        return "1. Boil\n2. Pour\n3. Drink<|end|>"
    return f"It takes {len(prompt)} steps.<|end|>"


def dividing(prompt: str) -> str:
    if "Tools:" not in prompt:
        return f"Answer: {sum(map(int, _numbers(prompt)))}<|end|>"
    if prompt.endswith("<|assistant|>"):
        return "Thought: First.\nAction: calc(3*7)\nObservation:"
    if prompt.endswith("Observation: 21\n"):
        return "Thought: Then.\nAction: calc(21+19)\nObservation:"
    return "Answer: 40<|end|>"


def adding(prompt: str) -> str:
    return f"Answer: {sum(map(int, _numbers(prompt)))}<|end|>"


def _numbers(prompt: str) -> list[str]:
    question = prompt.rpartition("<|user|>")[2].partition("<|end|>")[0]
    return [word.strip("?.") for word in question.split() if word.strip("?.").isdecimal()]


SCRIPTED: dict[str, tuple[tuple[str, ...], Answer]] = {
    "react": (("The age of Kabo plus 5?", json.dumps({"Kabo": {"age": 31}})), acting),
    "async_tools": (("Time?", "0"), calling),
    "skeleton_of_thought": (("List.", "{number}: {point}"), outlining),
    "recursion_of_thought": (("How many?",), dividing),
    "graph_of_thought": (("1 2 3 4",), adding),
    "self_consistency": (("1 + 1?", "3"), adding),
}
"""Programs whose loops a model that says anything would end at once."""

SELDOM = {"low_level_completion", "watermark_detection"}
"""Whose pages can be computed again by the node, so that few losses reach them."""

FIGURES = {"num_cached_tokens", "started_at"}

NAMES = sorted(set(LIBRARY) - ON_A_WHOLE_NODE)


def test_every_program_says_that_it_may_begin_again() -> None:
    assert all(program.restartable for program in LIBRARY.values())
    assert set(NAMES) | ON_A_WHOLE_NODE == set(LIBRARY)


def world(name: str) -> tuple[LocalNode, tuple[str, ...]]:
    if name in SCRIPTED:
        args, answer = SCRIPTED[name]
        return node_saying(answer, page_size=16)[0], args
    return node_of(), LIBRARY_ARGS[name]


async def undisturbed(name: str) -> tuple[Any, int]:
    """The result, and the turns of the loop until then."""
    node, args = world(name)
    async with node:
        program, num = Restartable(node, LIBRARY[name], *args), 0
        while not program.has_ended:
            await turns(1)
            num += 1
        return await program.result(), num


async def lost(name: str, *places: int) -> tuple[Any, int]:
    """The result of one whose engine is lost after so many turns, and again after so many more;
    how often it has begun again."""
    node, args = world(name)
    async with node:
        program = Restartable(node, LIBRARY[name], *args)
        for num in places:
            await turns(num)
            if not program.has_ended:
                await lose_engine(node)
        return await program.result(), program.num_again


def compared(result: Any) -> Any:
    """What of a result does not tell what was cached, or how far the model had come when a tool
    began: those are figures of one run."""
    if isinstance(result, list):
        return [compared(one) for one in result]
    if isinstance(result, dict):
        return {key: compared(one) for key, one in result.items() if key not in FIGURES}
    return result


@pytest.mark.parametrize("name", NAMES)
async def test_its_answer_is_the_same_wherever_its_engine_is_lost(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads_at_once(monkeypatch)  # of tools
    expected, num = await undisturbed(name)
    num_again = 0
    for place in sorted({1 + num * at // NUM_PLACES for at in range(NUM_PLACES)}):
        result, again = await lost(name, place, 1 + place % 17)
        assert compared(result) == compared(expected), f"lost after {place} of {num} turns"
        num_again += again
    assert num_again or name in SELDOM, "it has begun again"
