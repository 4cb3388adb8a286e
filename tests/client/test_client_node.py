"""``quire.client`` against a node that runs: every verb, and the errors of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.client import Client
from quire.core.errors import (
    ConfigError,
    EngineLost,
    InvalidArgument,
    ProgramCancelled,
    ProgramFailed,
    QuireError,
    UnknownHandle,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ECHO = '''
from quire.core.errors import MailboxClosed
from quire.programs.sdk import inferlet

@inferlet("client_echo")
async def main(api, *args):
    """Sends back what it gets, in capitals."""
    api.log("info", "begins", count=len(args))
    await api.send("ready " + " ".join(args))
    count = 0
    try:
        while True:
            await api.send((await api.receive()).upper())
            count += 1
    except MailboxClosed:
        return {"count": count, "seed": api.random().randrange(1000)}
'''
FAILS = """
from quire.programs.sdk import inferlet

@inferlet("client_fails")
async def main(api):
    raise ValueError("on purpose")
"""


@pytest.fixture
async def node(shipped_server: str) -> AsyncIterator[Client]:
    async with Client(f"{shipped_server}/v1") as client:
        yield client


async def test_a_conversation(node: Client) -> None:
    program = await node.launch(code=ECHO, args=["for", "you"], seed=7)
    async with program.attach() as attached:
        messages = attached.messages()
        assert await anext(messages) == "ready for you"
        await attached.send("one")
        assert await anext(messages) == "ONE"
        with pytest.raises(InvalidArgument, match="read messages"):
            await attached.result()
    await program.send("two")
    async with node.program(program.id).attach(after=2) as again:
        messages = again.messages()
        assert await anext(messages) == "TWO"
        await again.end_input()
        assert [message async for message in messages] == []
        result = await again.result()
    assert result == await program.result()
    assert result["count"] == 2
    record = await program.record()
    assert (record["state"], record["seed"], record["result"]) == ("finished", 7, result)
    assert program.id in [found["id"] for found in await node.programs()]
    assert {"count": 2} in [line["fields"] for line in await program.logs()]


async def test_uploads_are_launched_by_name(node: Client, tmp_path: Path) -> None:
    path = tmp_path / "echo.py"
    path.write_text(ECHO, encoding="utf-8")
    pushed = await node.push(path)
    assert pushed["id"] in [upload["id"] for upload in await node.uploads()]
    program = await node.launch("client_echo")
    waiting = asyncio.ensure_future(program.result())
    await program.end_input()
    assert (await waiting)["count"] == 0
    await node.delete_upload("client_echo")
    with pytest.raises(UnknownHandle):
        await node.launch("client_echo")


async def test_the_library(node: Client) -> None:
    assert "text_completion" in [program["name"] for program in await node.library()]
    program = await node.launch("text_completion", ["Rain", "2"], priority=1, client_id="mine")
    assert isinstance(await program.result(), str)
    assert (await program.record())["client_id"] == "mine"


async def test_a_program_is_ended(node: Client) -> None:
    program = await node.launch(code=ECHO)
    await program.cancel()
    with pytest.raises(ProgramCancelled):
        await program.result()


async def test_a_programs_failure_is_raised_with_its_traceback(node: Client) -> None:
    program = await node.launch(code=FAILS)
    with pytest.raises(ProgramFailed, match='raise ValueError\\("on purpose"\\)'):
        await program.result()


async def test_what_is_wrong_with_a_call_is_said(node: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="either program"):
        await node.launch()
    with pytest.raises(InvalidArgument, match="either program"):
        await node.launch("react", code=ECHO)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        await node.push(tmp_path / "missing.py")
    for call in (node.push(tmp_path), node.launch(code=tmp_path)):
        with pytest.raises(InvalidArgument, match=r"has no main\.py"):
            await call
    with pytest.raises(InvalidArgument, match="neither a WebAssembly module"):
        await node.push(b"\xff\xfe")
    with pytest.raises(UnknownHandle):
        await node.program("prog-none").record()
    with pytest.raises(QuireError, match="prog-none"):
        await node.program("prog-none").result()
    with pytest.raises(QuireError):
        await node.push("this is no python (")


async def test_a_run_returns_what_the_program_returned(node: Client) -> None:
    told = await node.run("text_completion", ["Rain falls on", "8"], seed=1)
    launched = await node.launch("text_completion", ["Rain falls on", "8"], seed=1)
    assert told == await launched.result()
    with pytest.raises(ProgramFailed, match="on purpose"):
        await node.run(code=FAILS)
    with pytest.raises(InvalidArgument, match="either program"):
        await node.run()


async def test_a_run_that_is_cancelled_ends_its_program(node: Client) -> None:
    running = asyncio.create_task(node.run(code=ECHO, client_id="run-and-leave"))
    while not (found := [p for p in await node.programs() if p["client_id"] == "run-and-leave"]):
        pass  # it may still be on its way
    running.cancel()
    with pytest.raises(ProgramCancelled, match="has left"):
        await node.program(found[0]["id"]).result()


async def test_where_no_node_is() -> None:
    with pytest.raises(ConfigError, match="not the address of a node"):
        Client("localhost:8000")
    async with Client("http://127.0.0.1:9") as nobody:
        with pytest.raises(EngineLost, match="no node answers"):
            await nobody.programs()
        with pytest.raises(EngineLost, match="no node answers"):
            await nobody.program("p").result()
