"""A program whose process cannot start it ends, whatever the reason: nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from quire.core.errors import ProgramTerminated
from quire.core.ids import ProgramId
from quire.core.interfaces import ProgramPort
from quire.node.sandbox.guest import SandboxedProgram
from quire.node.sandbox.link import SandboxLink
from quire.programs.runtime.running import RunningProgram


class Link:
    """A link to a process; ``error``: why it does not start."""

    def __init__(self, error: Exception | None, *, is_ready: bool) -> None:
        self.error = error
        self.is_ready = is_ready
        self.guests: list[int] = []

    async def ready(self) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error

    def add(self, guest: SandboxedProgram) -> int:
        self.guests.append(len(self.guests) + 1)
        return self.guests[-1]

    def forget(self, guest: int) -> None:
        if guest in self.guests:
            self.guests.remove(guest)


class Port:
    closed: str | None = None

    def close(self, reason: str) -> None:
        self.closed = reason


def guest_of(link: Link) -> SandboxedProgram:
    def soon(callback: Callable[[], object]) -> None:
        raise AssertionError("nobody reads or writes")

    guest = SandboxedProgram("p", cast(SandboxLink, link), asyncio.get_running_loop(), soon, 1.0)
    guest.port = cast(ProgramPort, Port())
    guest.running = RunningProgram(ProgramId(1), "p", guest.mailbox, guest.request_cancel)
    return guest


def never(number: int) -> None:
    raise AssertionError("it does not begin")


def full(number: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["process", "late", "at once"])
async def test_a_program_that_cannot_be_started_ends(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError(28, "No space left on device") if where == "process" else None
    link = Link(error, is_ready=where == "at once")
    guest = guest_of(link)
    begin: Any = never if where == "process" else full
    guest.start(begin)
    with pytest.raises(ProgramTerminated, match="No space left on device"):
        await asyncio.wait_for(guest.running.result(), 10)
    assert link.guests == []
    assert cast(Port, guest.port).closed == "terminated"
    assert "cannot be started" in caplog.text
