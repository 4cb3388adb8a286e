"""Guests that are core modules: compiled once, called through three exports, read through memory.

``wasm`` provides the wasmtime package, ``instances`` the calls. As for Python guests, imports that
are not defined here have no implementation: of WASI there are only a clock, random bytes and
standard output.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from quire.core.errors import InvalidArgument
from quire.programs.sandbox.module.instances import (
    MAX_VALUES,
    DirectInstance,
    DirectTemplate,
    Functions,
    Instance,
    InstanceLimits,
    OnFreed,
    PackageInstance,
    find_direct_calls,
)
from quire.programs.sandbox.module.wasi import WASI_FUNCTIONS, WASI_MODULE, WasiFunction
from quire.programs.sandbox.wasm.engine import (
    GuestTrapped,
    WasmEngine,
    load_wasmtime,
    new_engine,
    num_ticks,
    trapped,
)

logger = logging.getLogger(__name__)

INITIALISE = "_initialize"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def compile_module(wasm: bytes) -> bytes:
    """Machine code of a core module for this machine."""
    wasmtime = load_wasmtime()
    try:
        module = wasmtime.Module(new_engine(), wasm)
    except wasmtime.WasmtimeError as exc:
        raise InvalidArgument(f"the module is not valid: {str(exc).strip()}") from exc
    compiled: bytearray = module.serialize()
    return bytes(compiled)


@lru_cache(maxsize=256)
def _store_limits(memory_bytes: int) -> InstanceLimits:
    """Limits with this memory; cached, because many guests have the same."""
    return InstanceLimits(memory_bytes)


class LinkedModule:
    """A ``module`` of ``raw``, one of the process's engines, with its imports bound."""

    def __init__(self, engine: WasmEngine, raw: Any, module: Any) -> None:
        self._raw = raw
        linker = load_wasmtime().Linker(raw)
        linker.allow_shadowing = True
        linker.define_unknown_imports_as_traps(module)
        for entry in module.imports:
            if entry.module == WASI_MODULE and entry.name in WASI_FUNCTIONS:
                body = partial(_call_wasi, engine, WASI_FUNCTIONS[entry.name])
                linker.define_func(WASI_MODULE, entry.name, entry.type, body)
        self._instance_pre = linker.instantiate_pre(module)
        self.functions = callable_exports(module)
        direct = find_direct_calls()
        self._direct = (
            None
            if direct is None
            else DirectTemplate(direct, raw, self._instance_pre, self.functions)
        )

    def new_instance(self, limits: InstanceLimits, on_freed: OnFreed | None = None) -> Instance:
        if self._direct is None:
            return PackageInstance(self._raw, self._instance_pre, limits, on_freed)
        return DirectInstance(self._direct, limits, on_freed)


class ModuleTemplate:
    """A compiled core module, ready to be instantiated. ``compiled``: see ``PythonTemplate``.

    Raises:
        InvalidArgument: it lacks exports that the guest ABI requires.
    """

    def __init__(self, engine: WasmEngine, compiled: Path, exports: Mapping[str, int]) -> None:
        self.wasmtime = load_wasmtime()
        self.engine = engine
        module = self.wasmtime.Module.deserialize_file(engine.raw, str(compiled))
        self.exports = _checked_exports(module, exports)
        self._linked = LinkedModule(engine, engine.raw, module)
        self.initialises = INITIALISE in self._linked.functions
        self._pooled = self._linked_in_pool(compiled)

    def _linked_in_pool(self, compiled: Path) -> LinkedModule | None:
        """The same machine code, loaded by the pool's engine; ``None`` if it does not fit. While
        loading it the runtime compares the settings with which it was compiled, and the module's
        needs with the size of a slot."""
        pool = self.engine.pool
        if pool is None:
            return None
        try:
            module = self.wasmtime.Module.deserialize_file(pool.engine, str(compiled))
        except self.wasmtime.WasmtimeError as exc:
            logger.info("a module does not fit into the pool, its guests start slower: %s", exc)
            return None
        return LinkedModule(self.engine, pool.engine, module)

    @property
    def fits_pool(self) -> bool:
        return self._pooled is not None

    def new_guest(self, memory_bytes: int) -> ModuleGuest:
        """A guest, whose instance is created in its first turn."""
        return ModuleGuest(self, self._new_instance(_store_limits(memory_bytes)))

    def _new_instance(self, limits: InstanceLimits) -> Instance:
        pool = self.engine.pool
        if self._pooled is None or pool is None or not pool.take():
            return self._linked.new_instance(limits)
        return self._pooled.new_instance(limits, pool.give_back)


def _checked_exports(module: Any, wanted: Mapping[str, int]) -> frozenset[str]:
    """The names of all exports. ``wanted``: functions from i32 to one i32, with their number of
    parameters.

    Raises:
        InvalidArgument: a function is missing or has another type, or there is no memory.
    """
    wasmtime = load_wasmtime()
    i32 = wasmtime.ValType.i32()
    found = {one.name: one.type for one in module.exports}
    for name, num_parameters in wanted.items():
        kind: Any = found.get(name)
        types = ([i32] * num_parameters, [i32])
        is_function = isinstance(kind, wasmtime.FuncType)
        if not is_function or (list(kind.params), list(kind.results)) != types:
            raise InvalidArgument(
                f"the module exports no function {name} of {num_parameters} i32 to one i32: "
                "see the guest ABI"
            )
    if not isinstance(found.get("memory"), wasmtime.MemoryType):
        raise InvalidArgument("the module exports no memory: see the guest ABI")
    return frozenset(found)


def callable_exports(module: Any) -> Functions:
    """The callable exports of a compiled ``module``."""
    wasmtime = load_wasmtime()
    i32 = wasmtime.ValType.i32()
    found: dict[str, int] = {}
    for export in module.exports:
        if not isinstance(export.type, wasmtime.FuncType):
            continue
        parameters, results = list(export.type.params), list(export.type.results)
        takes_numbers = parameters == [i32] * len(parameters) and len(parameters) <= MAX_VALUES
        if takes_numbers and (results == [i32] or not (parameters or results)):
            found[export.name] = len(parameters)
    return found


class ModuleGuest:
    """One instance of ``template``, which is created in its first turn. It may be called only
    within turns.

    ``log`` receives its output to WASI's standard output and error; set it before the first turn.
    """

    __slots__ = ("_has_begun", "_instance", "_size", "_template", "_view", "cpu_ns", "log")

    def __init__(self, template: ModuleTemplate, instance: Instance) -> None:
        self._template = template
        self._instance = instance
        self._has_begun = False
        self._view = _NO_MEMORY
        self._size = 0
        self.log: Callable[[str, str], None] = _unheard
        self.cpu_ns = 0

    def turn(self, limit_s: float, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Let ``work`` call the instance. All calls together, and ``work`` itself, may compute for
        ``limit_s``.

        Raises:
            GuestTrapped: it ran out of time, or a call trapped; it is unusable afterwards.
        """
        engine, wasmtime = self._template.engine, self._template.wasmtime
        self._instance.allow(num_ticks(limit_s))
        started = time.thread_time_ns()
        engine.enter(self)
        try:
            if not self._has_begun:
                self._begin()
            return work(*arguments)
        except wasmtime.Trap as exc:
            interrupted = exc.trap_code is wasmtime.TrapCode.INTERRUPT
            raise GuestTrapped(exc.message.strip(), interrupted=interrupted) from exc
        except wasmtime.WasmtimeError as exc:
            raise trapped(str(exc)) from exc
        finally:
            engine.leave()
            self.cpu_ns += time.thread_time_ns() - started

    def _begin(self) -> None:
        self._instance.begin()
        self._has_begun = True
        self.look()
        if self._template.initialises:
            self.call(INITIALISE)

    def call(self, name: str, *arguments: int) -> int:
        """Call an export; return its result as an unsigned number, 0 if it has none."""
        assert self._template.engine.current is self, "within a turn"
        result: int = self._instance.call(name, *arguments)
        self.look()
        return result

    def memory(self) -> memoryview:
        """The memory after the last call."""
        return self._view

    def look(self) -> memoryview:
        """The current memory: a call may enlarge and move it.

        Empty while the module's start function runs, because the memory's address is not known
        before.
        """
        if self._has_begun and (size := self._instance.memory_size()) != self._size:
            base = self._instance.memory_base()
            self._view = memoryview((ctypes.c_char * size).from_address(base)).cast("B")
            self._size = size
        return self._view

    def close(self) -> None:
        """Free the instance's memory. Views of it must not be used afterwards."""
        if self._size:
            self._view.release()
        self._has_begun = False
        self._instance.close()


_NO_MEMORY = memoryview(b"")


def _unheard(level: str, text: str) -> None:
    """Drop output that is written before ``log`` is set."""


def _call_wasi(engine: WasmEngine, function: WasiFunction, *arguments: int) -> int:
    guest: ModuleGuest = engine.current
    return function(guest.look(), guest.log, *arguments)
