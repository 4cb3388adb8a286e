"""What every guest is made under, whatever it is made of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.core.errors import CapacityError
from quire.programs.sandbox.host.machine_memory import KEPT_FREE_BYTES, MachineRoom
from quire.programs.sandbox.host.templates import Templates
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.program import WASM_MAGIC, code_digest
from quire.programs.sandbox.wasm.cache import BuildCache

pytest.importorskip("wasmtime")


class Module:
    """A compiled module that counts its guests."""

    def __init__(self) -> None:
        self.memory_bytes: list[int] = []

    def new_guest(self, memory_bytes: int) -> object:
        self.memory_bytes.append(memory_bytes)
        return object()


@pytest.mark.asyncio
async def test_compiled_guests_begin_only_while_the_machine_has_memory(tmp_path: Path) -> None:
    left = KEPT_FREE_BYTES
    room = MachineRoom(lambda: left)
    templates = Templates(asyncio.get_running_loop(), BuildCache(tmp_path), 0, room)
    module, limits = Module(), GuestLimits(memory_bytes=1 << 20)
    digest = code_digest(WASM_MAGIC)
    templates._modules[digest] = module  # type: ignore[assignment]
    begin = templates.runner_of(WASM_MAGIC, digest, limits)

    def begin_many() -> None:
        for _ in range(16):
            begin()

    begin()
    left -= 1
    with pytest.raises(CapacityError, match="511 MiB of memory left"):
        begin_many()
    assert 1 <= len(module.memory_bytes) <= 16
    num_begun = len(module.memory_bytes)
    with pytest.raises(CapacityError):
        begin()
    assert len(module.memory_bytes) == num_begun
    templates.close()
