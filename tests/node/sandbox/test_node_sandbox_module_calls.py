"""Compiled guests ask the node's services: a name and JSON out, JSON in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node
from wasm_programs import COMMANDS, DATA, command, escaped, module

from quire.core.errors import QuireError
from quire.node import Node
from quire.programs.sandbox.module.abi import GuestOp

pytest.importorskip("wasmtime", reason="the extra 'sandbox' is not installed")

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

MANIFEST = 12288
END_WITH_ANSWER = """
    (i32.store (i32.const 1024) (i32.const 7))
    (i32.store (i32.const 1032) (i32.ne (i32.load (i32.const 2056)) (i32.const 0)))
    (i32.store (i32.const 1048) (i32.load (i32.const 2072)))
    (i32.store (i32.const 1052) (i32.load (i32.const 2076)))
    (i32.const 1)
"""
"""Ends with the first event's payload, as an error where its status is one."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    node = sandbox_node(sandbox_config(sandbox_cache))
    await node.start()
    yield node
    await node.stop()


def calling(name: str, arguments: str, *, name_bytes: int | None = None, id: int = 1) -> bytes:
    """A module that makes one call and ends with what it is answered."""
    text = (name + arguments).encode()
    length = len(name) if name_bytes is None else name_bytes
    ring = command(GuestOp.ASK_SERVICE, id=id, a=length, address=DATA, length=len(text))
    manifest = b'{"name": "caller", "topics": ["news"], "stores": ["notes"]}\0'
    return module(
        data=f'(data (i32.const {COMMANDS}) "{escaped(ring)}") '
        f'(data (i32.const {DATA}) "{escaped(text)}") '
        f'(data (i32.const {MANIFEST}) "{escaped(manifest)}")',
        functions=f'(func (export "quire_manifest") (result i32) (i32.const {MANIFEST}))',
        start="(i32.const 1)",
        poll=END_WITH_ANSWER,
    )


async def result_of(node: Node, code: bytes) -> object:
    return await node.launch(await node.inspect(code), tenant=TENANT).result()


async def test_a_module_uses_topics_stores_and_children(node: Node) -> None:
    put = '{"key":"k","value":"[1]","store":"notes","ttl_s":null}'
    assert await result_of(node, calling("topic.broadcast", '{"topic":"news","message":"m"}')) == 0
    await result_of(node, calling("store.put", put))
    found = await result_of(node, calling("store.get", '{"key":"k","store":"notes"}'))
    assert found == "[1]"
    launch = '{"program":"text_completion","source":null,"args":["a","1"],"quotas":{},"seed":1}'
    child = await result_of(node, calling("child.launch", launch))
    assert isinstance(child, dict)
    assert child["name"] == "text_completion"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (calling("topic.broadcast", '{"topic":"other","message":"m"}'), "'other' is not allowed"),
        (calling("store.get", '{"key":"k","store":"s"}'), "store 's' is not allowed"),
        (calling("store.get", ""), "missing required field"),
        (calling("store.get", "[1]"), "not a JSON object"),
        (calling("store.get", "{"), "not a JSON object"),
        (calling("store.get", "[" * 4000), "not a JSON object"),
        (calling("store.get", "{}", name_bytes=99), "a name of 99 bytes in a payload of 11"),
        (calling("store.get", "{}", id=0), "waits for nothing"),
    ],
)
async def test_a_bad_call_is_an_error_of_the_program(node: Node, code: bytes, words: str) -> None:
    with pytest.raises(QuireError) as caught:
        await result_of(node, code)
    assert words in caught.value.message


PULL = '{"queue":"news"}'
PULLER = program(
    """
    @inferlet("puller", topics=["news"])
    async def puller(api):
        return await api.pull("news")
    """
)


def pushing(text: str) -> bytes:
    arguments = json.dumps({"queue": "news", "message": text, "ttl_s": 60.0})
    return calling("queue.push", arguments)


async def test_a_message_larger_than_the_inbox_goes_back(node: Node) -> None:
    text = "x" * 300
    await result_of(node, pushing(text))
    with pytest.raises(QuireError):
        await result_of(node, calling("queue.pull", PULL))
    assert await result_of(node, PULLER) == text


async def test_a_pull_that_is_given_up_takes_nothing(node: Node) -> None:
    text = "queue.pull" + PULL
    ring = command(GuestOp.ASK_SERVICE, id=1, a=10, address=DATA, length=len(text))
    ring += command(GuestOp.CANCEL, a=1)
    manifest = b'{"name": "caller", "topics": ["news"]}\0'
    giving_up = module(
        data=f'(data (i32.const {COMMANDS}) "{escaped(ring)}") '
        f'(data (i32.const {DATA}) "{escaped(text.encode())}") '
        f'(data (i32.const {MANIFEST}) "{escaped(manifest)}")',
        functions=f'(func (export "quire_manifest") (result i32) (i32.const {MANIFEST}))',
        start="(i32.const 2)",
        poll=END_WITH_ANSWER,
    )
    with pytest.raises(QuireError, match="no longer waits for it"):
        await result_of(node, giving_up)
    await result_of(node, pushing("kept"))
    assert await result_of(node, PULLER) == "kept"
