"""The programs in ``examples/``, each over a node whose model is scripted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs_node import level, node_saying

from quire.cli.programs.folder import load_folder
from quire.programs.library import find
from quire.programs.runtime import ProgramHost

EXAMPLES = Path(__file__).parents[2] / "examples"


async def run(name: str, *args: str, answer: Callable[[str], str]) -> tuple[Any, list[str]]:
    node, _ = node_saying(answer, page_size=16)
    async with node:
        host = ProgramHost(asyncio.get_running_loop())
        running = host.launch(find(str(EXAMPLES / name)), args, node.connect())
        try:
            result = await running.result()
        finally:
            messages = [message async for message in running.messages()]
            await host.shutdown()
        assert (await level(node))["held"] == 0
    return result, messages


async def test_the_agent_calls_its_tool() -> None:
    def answer(prompt: str) -> str:
        if "<|tool|>" in prompt:
            assert '{"temperature": 19, "conditions": "sunny"}' in prompt
            return "19 degrees.<|end|>"
        assert '"name": "get_weather"' in prompt
        return (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Lima"}}</tool_call><|end|>'
        )

    result, messages = await run("agent.py", "The weather in Lima?", answer=answer)
    assert result["answer"] == "19 degrees."
    assert [call["name"] for call in result["calls"]] == ["get_weather"]
    assert messages[0].startswith('get_weather({"city": "Lima"}) = ')


async def test_custom_decoding_sees_every_token() -> None:
    result, messages = await run("custom_decoding.py", "List.", answer=lambda _: "1. owl<|end|>")
    assert result == "1. owl" == "".join(messages)


async def test_votes_are_counted() -> None:
    result, _ = await run("parallel_votes.py", "1+1?", "3", answer=lambda _: "Answer: 2<|end|>")
    assert result == {"answer": "2", "votes": {"2": 3}}


async def test_a_folder_is_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    program = load_folder(EXAMPLES / "glossary")
    node, _ = node_saying(lambda prompt: f"{'page' in prompt}<|end|>", page_size=16)
    async with node:
        told = await node.run(program, "A page is a unit. The graph grows.")
    assert told == {"page": "True", "unit": "False", "graph": "False"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_explained_and_listed(path: Path) -> None:
    text = path.read_text()
    assert text.startswith('"""')
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text()
