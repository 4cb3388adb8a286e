"""What goes wrong in a sandbox process while a program is prepared is said to whoever waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.core.errors import ErrorRecord
from quire.node.sandbox import messages as s
from quire.node.sandbox_process import SandboxProcess
from quire.programs.sandbox.limits import GuestLimits


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


async def test_a_guest_whose_program_cannot_be_prepared_ends() -> None:
    host, sandbox = Host(), process([])
    sandbox._late[7] = []
    await sandbox._start_late(host, Start(), b"")  # type: ignore[arg-type]
    ((number, error),) = host.refused
    assert (number, error.code) == (7, "program_terminated")
    assert not sandbox._late
