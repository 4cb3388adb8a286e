"""Hostile grammars from programs of every home, before a real engine: neighbours go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sandbox_node import needs_sandbox

from quire.core.config import EngineConfig, NodeConfig
from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError, ProgramFailed
from quire.core.ids import ModelId, TenantId
from quire.node import Node, ProgramHandle
from quire.programs.inferlet import inferlet
from quire.programs.sdk import Context

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]

TENANT = TenantId("default")


def slow(first: int) -> str:
    """Return a schema that takes ten seconds to compile."""
    items = [{"type": "integer", "multipleOf": first + i} for i in range(500)]
    return json.dumps({"type": "array", "prefixItems": items})


_RULES = (
    f"r{i}: " + " | ".join(f"r{j}" for j in range(i + 1, min(i + 40, 398))) for i in range(397)
)
TRAP = "\n".join(['start: /[a-z]{50}/ "!" r0', *_RULES, 'r397: "a"'])
"""Good for fifty letters; the mask behind them would take seconds."""

GUEST = f"""
from quire.core.errors import GrammarError
from quire.programs.sdk import Context, inferlet, json_schema


@inferlet("hostile")
async def main(api):
    async with Context(api) as context:
        context.fill("hello")
        try:
            async for _ in context.generate(max_tokens=4, grammar=json_schema({slow(2003)!r})):
                pass
        except GrammarError as exc:
            return str(exc)
"""


@inferlet()
async def neighbour(api: Any) -> None:
    """Decodes until it is ended, and tells of each token."""
    while True:
        async with Context(api) as context:
            context.fill("Once upon a time")
            async for _ in context.generate(max_tokens=50, ignore_eos=True):
                await api.send("token")


@inferlet()
async def hostile(api: Any, kind: str, source: str) -> str:
    async with Context(api) as context:
        context.fill("hello")
        grammar = GrammarSpec(kind, source)  # type: ignore[arg-type]
        return "".join([text async for text in context.generate(max_tokens=80, grammar=grammar)])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    node = Node(NodeConfig(engines=(EngineConfig(source="quire-mini", name=ModelId("mini")),)))
    await node.start()
    yield node
    await node.stop()


async def goes_on(node: Node, attack: Callable[[], ProgramHandle]) -> str:
    """The error of ``attack``, during which and after which another program has had tokens."""
    other = node.launch(neighbour, tenant=TENANT)
    attached = other.attach()
    events = aiter(attached)
    await anext(events)
    try:
        message = str(await attack().result())
    except (GrammarError, ProgramFailed) as exc:
        message = exc.message
    for _ in range(20):
        await anext(events)
    other.terminate("that was all")
    return message


async def test_a_program_is_refused_what_takes_too_much(node: Node) -> None:
    args = ("json_schema", slow(1009))
    said = await goes_on(node, lambda: node.launch(hostile, args, tenant=TENANT))
    assert "more than 0.25 s of processor time to compile" in said


async def test_a_program_that_gets_to_what_takes_too_much_fails_alone(node: Node) -> None:
    said = await goes_on(node, lambda: node.launch(hostile, ("lark", TRAP), tenant=TENANT))
    assert "more than 100 ms of processor time for one token" in said


@needs_sandbox
async def test_a_guest_is_refused_what_takes_too_much(node: Node, tmp_path: Path) -> None:
    program = await node.inspect(GUEST.encode())
    said = await goes_on(node, lambda: node.launch(program, tenant=TENANT))
    assert "more than 0.25 s of processor time to compile" in said
