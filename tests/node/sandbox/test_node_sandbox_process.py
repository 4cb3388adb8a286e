"""What goes wrong in a sandbox process while a program is prepared is said to whoever waits; one
that is told to end while it builds does so."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sandbox_node import CHILD, needs_sandbox

from quire.core.config import SandboxConfig
from quire.core.errors import Draining, ErrorRecord, ProtocolMismatch
from quire.node.loops import in_daemon_thread
from quire.node.sandbox import messages as s
from quire.node.sandbox.link import LinkSettings, SandboxLink
from quire.node.sandbox.sandbox_process import SandboxProcess
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.messages import Fetch
from quire.programs.sandbox.wasm.build_processes import BuildProcesses
from quire.testing import VirtualClock


class FullDisk:
    """Templates that cannot be written."""

    async def prepare(self, code: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def inspect(self, code: bytes, limits: GuestLimits) -> None:
        await self.prepare(code)


class Host:
    def __init__(self) -> None:
        self.refused: list[tuple[int, ErrorRecord]] = []

    def refuse(self, number: int, error: ErrorRecord) -> None:
        self.refused.append((number, error))


FETCH = Fetch(request=1, method="GET", url="http://a", body=None, headers=None)


class Start:
    guest = 7


def process(said: list[Any]) -> SandboxProcess:
    order = s.SandboxOrder(
        version=1, endpoint="", token="", cache_dir=str(Path()), num_warm=0, engines=()
    )
    made = SandboxProcess(order, None)  # type: ignore[arg-type]
    made._templates = FullDisk()  # type: ignore[assignment]
    made._say = said.append  # type: ignore[method-assign]
    return made


async def test_an_inspection_that_breaks_is_answered() -> None:
    said: list[Any] = []
    await process(said)._inspect(s.Inspect(number=3, code=b"", limits=GuestLimits()))
    (answer,) = said
    assert answer.number == 3
    assert "No space left" in answer.inspected.error.message


@pytest.mark.parametrize(
    "early",
    [
        s.Tell(news=[]),
        s.Starts(starts=[]),
        s.Keep(code={}, models=None, forget=[]),
        s.OrderFetch(guest=7, call=FETCH),
        s.Stop(guest=7, error=ErrorRecord("program_cancelled", "")),
        s.Inspect(number=3, code=b"", limits=GuestLimits()),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_what_comes_before_there_is_a_host_is_refused(early: s.ToSandbox) -> None:
    said: list[Any] = []
    sandbox = process(said)
    with pytest.raises(ProtocolMismatch, match=f"{type(early).__name__} out of turn"):
        sandbox._on_message(early)
    assert (said, sandbox._tasks) == ([], set())


async def test_a_guest_whose_program_cannot_be_prepared_ends() -> None:
    host, sandbox = Host(), process([])
    sandbox._late[7] = []
    await sandbox._start_late(host, Start(), b"")  # type: ignore[arg-type]
    ((number, error),) = host.refused
    assert (number, error.code) == (7, "program_terminated")
    assert not sandbox._late


@needs_sandbox
async def test_a_process_that_builds_ends_when_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()
    builders: list[int] = []

    def progress(stage: str, fraction: float) -> None:
        builders.append(int(stage))
        begun.set()

    command = (sys.executable, str(CHILD), "building")
    settings = LinkSettings(
        SandboxConfig(cache_dir=tmp_path / "cache"), (), command, on_progress=progress
    )
    link = SandboxLink("0", settings, VirtualClock())
    starting = asyncio.create_task(link.ready())
    await begun.wait()
    await link.close()
    await asyncio.gather(starting, return_exceptions=True)
    assert "is killed" not in caplog.text, "it has not ended by itself"
    with pytest.raises(ProcessLookupError):
        os.kill(builders[0], 0)


async def test_a_build_that_was_ended_is_an_error_and_none_begins() -> None:
    processes, forever = BuildProcesses(), (sys.executable, "-c", "import signal; signal.pause()")
    process = processes.start(forever)
    processes.end()
    assert await in_daemon_thread(process.wait) < 0
    processes.ended(process)
    with pytest.raises(Draining, match="starts no further builds"):
        processes.start(forever)


async def test_a_thread_that_never_returns_is_left_behind() -> None:
    never = threading.Event()
    waiting = asyncio.create_task(in_daemon_thread(never.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    never.set()


async def test_a_threads_error_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 // 0)
