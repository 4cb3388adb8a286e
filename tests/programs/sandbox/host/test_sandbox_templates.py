"""What every guest is made under, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import CapacityError
from quire.programs.sandbox.host.machine_memory import KEPT_FREE_BYTES, MachineRoom
from quire.programs.sandbox.host.templates import CompiledSources, Templates
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.program import WASM_MAGIC, code_digest
from quire.programs.sandbox.wasm.cache import BuildCache

pytest.importorskip("wasmtime")


class Module:
    """A compiled module that counts its guests."""

    exports = frozenset({"quire_start"})

    def __init__(self) -> None:
        self.memory_bytes: list[int] = []

    def new_guest(self, memory_bytes: int) -> object:
        self.memory_bytes.append(memory_bytes)
        return object()


class ToldModule(Module):
    """A compiled module whose guests say what ``text`` is, where they are asked."""

    def __init__(self, exports: set[str], text: bytes) -> None:
        super().__init__()
        self.exports = frozenset(exports)
        self._text = text

    def new_guest(self, memory_bytes: int) -> ToldModule:
        return self

    def turn(self, limit_s: float, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    def call(self, name: str) -> int:
        assert name in self.exports
        return 0

    def memory(self) -> memoryview:
        return memoryview(self._text)

    def close(self) -> None:
        pass


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


@pytest.mark.parametrize(
    ("exports", "name"), [({"quire_start"}, "module-"), ({"quire_manifest"}, "told")]
)
@pytest.mark.asyncio
async def test_a_module_is_named_by_its_manifest_or_by_its_code(
    tmp_path: Path, exports: set[str], name: str
) -> None:
    templates = Templates(asyncio.get_running_loop(), BuildCache(tmp_path), 0)
    digest = code_digest(WASM_MAGIC)
    module: Any = ToldModule(exports, b'{"name":"told"}\0')
    templates._modules[digest] = module
    inspected = await templates.inspect(WASM_MAGIC, GuestLimits())
    assert inspected.error is None
    assert inspected.manifest is not None
    assert inspected.manifest.name == (name if name == "told" else name + digest[:8])
    templates.close()


@pytest.mark.asyncio
async def test_the_module_that_was_used_last_is_forgotten_last(tmp_path: Path) -> None:
    templates = Templates(asyncio.get_running_loop(), BuildCache(tmp_path), 0)
    digests = [code_digest(WASM_MAGIC + bytes([number])) for number in range(3)]
    for digest in digests:
        templates._modules[digest] = Module()  # type: ignore[assignment]
    templates.runner_of(WASM_MAGIC + bytes([0]), digests[0], GuestLimits())
    assert list(templates._modules) == [digests[1], digests[2], digests[0]]
    templates.close()


def test_compiled_sources_are_kept_up_to_their_bound() -> None:
    kept = CompiledSources(max_chars=20)
    kept.put("a", "x" * 9)
    kept.put("b", "x" * 9)
    assert "a" in kept, "twenty characters with both digests"
    assert kept.get("a") == "x" * 9
    kept.put("c", "")
    assert ("a" in kept, "b" in kept, "c" in kept) == (True, False, True)
