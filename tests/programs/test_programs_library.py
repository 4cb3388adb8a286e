"""The shipped programs, run as programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs_node import level, node_of, node_saying

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.library import LIBRARY, find
from quire.programs.library.calculator import calc
from quire.programs.runtime import ProgramHost


async def run(
    name: str, *args: str, answer: Callable[[str], str] | None = None, page_size: int = 4
) -> tuple[Any, list[str], int]:
    """Result, messages and number of prompts the model saw."""
    node, script = (
        node_saying(answer, page_size) if answer is not None else (node_of(page_size), None)
    )
    async with node:
        host = ProgramHost(asyncio.get_running_loop())
        running = host.launch(find(name), args, node.connect())
        try:
            result = await running.result()
        finally:
            messages = [message async for message in running.messages()]
            await host.shutdown()
            assert (await level(node))["held"] == 0
    return result, messages, len(script.prompts) if script else 0


async def test_text_completion_streams() -> None:
    result, messages, _ = await run("text_completion", "Hello,", "5", answer=lambda _: " world!")
    assert result == " worl"
    assert "".join(messages) == " worl"


async def test_both_levels_agree() -> None:
    low, _, _ = await run("low_level_completion", "Hello,", "7", answer=lambda _: " world, hello")
    assert low == " world,"


async def test_react_calls_tools_in_one_context() -> None:
    def answer(prompt: str) -> str:
        if prompt.endswith("<|assistant|>"):
            return "Thought: Look.\nAction: lookup(Kabo, age)\nObservation:"
        if prompt.endswith("Observation: 31\n"):
            return "Thought: Add.\nAction: calc(31+5)\nObservation:"
        assert prompt.endswith("Observation: 36\n"), prompt
        return "Thought: I know.\nAnswer: 36<|end|>"

    records = json.dumps({"Kabo": {"age": 31}})
    result, messages, num_prompts = await run(
        "react", "What is the age of Kabo plus 5?", records, answer=answer
    )
    assert result == {
        "answer": "36",
        "steps": [
            {"action": "lookup(Kabo, age)", "observation": "31"},
            {"action": "calc(31+5)", "observation": "36"},
        ],
    }
    assert messages[0] == "Thought: Look.\nAction: lookup(Kabo, age)\n"
    assert num_prompts == 3


async def test_react_tells_the_model_what_went_wrong() -> None:
    said = iter(
        [
            "Action: fly(away)\nObservation:",
            "Action: calc(1+)\nObservation:",
            "Action: lookup(Nobody, age)\nObservation:",
            "Observation:",
            "I give up.<|end|>",
        ]
    )
    result, _, _ = await run("react", "What?", answer=lambda _: next(said))
    observations = [step["observation"] for step in result["steps"]]
    assert observations == [
        "error: no such action: fly(away)",
        "error: not an expression: '1+'",
        "not found",
        "error: no such action: ",
    ]
    assert result["answer"] == ""


async def test_react_ends_when_the_model_goes_round_in_circles() -> None:
    result, _, _ = await run("react", "What?", answer=lambda _: "Action: calc(1)\nObservation:")
    assert (result["answer"], len(result["steps"])) == ("", 8)


@pytest.mark.parametrize("page_size", [1, 4, 16])
async def test_prefix_caching_shows_its_figures(page_size: int) -> None:
    prefix = "A prefix that is long enough for pages. "
    result, _, _ = await run("prefix_caching", prefix, "One?", "Two?", page_size=page_size)
    num_shared = 1 + len(prefix) + 2  # <|system|>, the text, <|end|><|user|>
    assert [answer["num_prompt_tokens"] for answer in result] == [num_shared + 6] * 2
    assert result[0]["num_cached_tokens"] == 0
    assert result[1]["num_cached_tokens"] == num_shared // page_size * page_size


async def test_parallel_generation_joins_its_branches() -> None:
    result, _, _ = await run(
        "parallel_generation",
        "Two colors:",
        " 1.",
        " 2.",
        answer=lambda prompt: " red\n" if prompt.endswith("1.") else " blue\n",
    )
    assert result == {"texts": [" red", " blue"], "joined": "Two colors: 1. red\n 2. blue\n"}


async def test_json_output_parses() -> None:
    result, _, _ = await run(
        "json_output", "Who?", answer=lambda _: '{"name": "Kabo", "age": 31}<|end|>'
    )
    assert result == {"name": "Kabo", "age": 31}


def test_find_names_what_there_is() -> None:
    assert find("react") is LIBRARY["react"]
    with pytest.raises(InvalidArgument, match="text_completion"):
        find("no_such_program")
    assert all(program.description for program in LIBRARY.values())


async def test_a_bad_argument_fails_the_program() -> None:
    with pytest.raises(ProgramFailed, match="invalid literal for int"):
        await run("text_completion", "Hello", "many")


# -- the calculator --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12+30", "42"),
        ("(12 + 30) * 2", "84"),
        ("7/2", "3.5"),
        ("10/3", "3.33"),
        ("8/4", "2"),
        ("-3 - -4", "1"),
        ("2**10", "1024"),
        ("17 % 5 + 17 // 5", "5"),
        ("0.1+0.2", "0.3"),
    ],
)
def test_calc(expression: str, value: str) -> None:
    assert calc(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "1+", "a", "1/0", "__import__('os')", "(1).real", "[1]*9", "9**9**9", "2**-99999",
        "True", "1j", "(-8)**0.5", "'a'*9", "1 if 1 else 2", "f(1)", "1<2", "1" * 1001,
        "(" * 500 + "1" + ")" * 500, "1e999", "1e308*10-1e308*10", "3and 4", "\x00",
        "(10**1200)*(10**100)", "0.0**-1",
    ],
)  # fmt: skip
def test_calc_refuses(expression: str) -> None:
    with pytest.raises(InvalidArgument):
        calc(expression)


@given(st.text(alphabet="0123456789+-*/%(). e_j~<>", max_size=30))
def test_calc_never_raises_anything_else(expression: str) -> None:
    with suppress(InvalidArgument):
        assert isinstance(calc(expression), str)
