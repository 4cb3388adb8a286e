"""Ctrl-C while a running node takes a program: heard at once, and nothing stays there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PROGRAM = """
from quire.programs.sdk import inferlet

@inferlet()
async def main(api):
    return 1
"""


class StandIn:
    """Answers launches with an id once they are let through, and attachments never."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[str] = asyncio.Queue()
        self.may_launch = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            await reader.readexactly(int(fields.get("content-length", 0)))
            request = lines[0].removesuffix(" HTTP/1.1")
            if request != "GET /health":
                self.requests.put_nowait(request)
            if request == "POST /v1/programs":
                await self.may_launch.wait()
            if "/attach" not in request:
                body = json.dumps({"id": "prog-1"}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@asynccontextmanager
async def stand_in() -> AsyncIterator[StandIn]:
    made = StandIn()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await made.serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        made.may_launch.set()
        server.close()


async def run(node: StandIn, folder: Path, *options: str) -> asyncio.subprocess.Process:
    path = folder / "mine.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire.cli", "run", str(path), "--url", node.url, *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ,
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--detach",)])
async def test_the_first_interrupt_ends_a_launch(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The node may take a minute for the first code that it gets."""
    async with stand_in() as node:
        process = await run(node, tmp_path, *options)
        assert await node.requests.get() == "POST /v1/programs"
        process.send_signal(signal.SIGINT)
        out, said = await process.communicate()
    assert (process.returncode, out) == (130, b""), said
    assert b"Traceback" not in said


async def test_a_program_that_is_launched_but_not_attached_to_yet_is_ended(tmp_path: Path) -> None:
    async with stand_in() as node:
        node.may_launch.set()
        process = await run(node, tmp_path)
        assert await node.requests.get() == "POST /v1/programs"
        assert await node.requests.get() == "GET /v1/programs/prog-1/attach?after=0"
        process.send_signal(signal.SIGINT)
        assert await node.requests.get() == "DELETE /v1/programs/prog-1"
        _, said = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in said
