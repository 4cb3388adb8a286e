"""The WebAssembly engine and Python guests; the only module that imports wasmtime.

Owns the engine, its compiled code, the imports of Python guests, and the interruption of calls that
take too long. A guest gets a clock, random bytes and ``ask``; all other imports of its interpreter
(files, sockets, blocking waits, exit) have no implementation here: calling one ends the instance.
One thread calls guests; a second one only advances the engine's epoch.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.programs.sandbox.wasm.instance_pool import NUM_PLACES, find_pool

EPOCH_S = 0.01
_IDLE_TICKS = 10
"""After this many ticks without a call the ticking thread sleeps until the next call."""
_ENGINE_SETTINGS = "epoch,opt-none,stack-1m"
"""Identifies the settings below in the key of compiled code."""
_MAX_STACK_BYTES = 1 << 20
_MAX_RANDOM_BYTES = 1 << 16
_INSTANTIATE_TICKS = 1000

_EXPORTS = ("warm", "inspect", "compile", "load", "wake", "memory-pages")
_PAGE_BYTES = 1 << 16
"""WebAssembly's unit of memory."""
_MEMORY_LIMIT_S = 1.0
"""Far more than the one instruction takes that returns the size of a memory."""

_NOT_INSTALLED = (
    "sandboxed programs need wasmtime, which is not installed: pip install 'quire[sandbox]'"
)

Ask = Callable[[str], str]


class GuestTrapped(Exception):
    """An instance has ended without an answer. ``interrupted``: because it ran out of time."""

    def __init__(self, reason: str, *, interrupted: bool = False) -> None:
        super().__init__(reason)
        self.interrupted = interrupted


def load_wasmtime() -> Any:
    try:
        import wasmtime
        import wasmtime.component
    except ImportError as exc:
        raise ConfigError(_NOT_INSTALLED) from exc
    return wasmtime


def problem_of_wasmtime() -> str | None:
    """Why this installation cannot run sandboxed programs; does not import wasmtime."""
    return None if find_spec("wasmtime") is not None else _NOT_INSTALLED


def engine_version() -> str:
    """Everything that compiled code depends on except its source: release, settings, machine.

    Raises:
        ConfigError: wasmtime is not installed.
    """
    load_wasmtime()
    uname = os.uname()
    return f"{version('wasmtime')}-{_ENGINE_SETTINGS}-{uname.sysname}-{uname.machine}"


def compile_component(wasm: bytes) -> bytes:
    """Machine code of a component for this machine; takes seconds for a large one."""
    engine = new_engine()
    compiled: bytearray = load_wasmtime().component.Component(engine, wasm).serialize()
    return bytes(compiled)


def new_engine() -> Any:
    """An engine that can compile, and run the output of any engine with these settings."""
    return load_wasmtime().Engine(_new_config())


def _new_config() -> Any:
    config = load_wasmtime().Config()
    config.epoch_interruption = True
    config.max_wasm_stack = _MAX_STACK_BYTES
    # the interpreter was optimised when it was compiled to WebAssembly; optimising again gains
    # nothing
    config.cranelift_opt_level = "none"
    return config


def _thread_clock() -> int | None:
    """The id of this thread's processor clock, which other threads can read."""
    find = getattr(time, "pthread_getcpuclockid", None)
    return None if find is None else int(find(threading.get_ident()))


class WasmEngine:
    """The engine of one process, and the engine of its ``pool`` (with ``num_places``), if it has
    one. Created by the thread that calls guests; ``close`` ends the ticking thread."""

    def __init__(self, num_places: int = NUM_PLACES) -> None:
        self._engine = new_engine()
        self.pool = find_pool(load_wasmtime(), _new_config(), num_places) if num_places else None
        self._busy = threading.Event()
        self._num_calls = 0
        self._closed = False
        self._clock = _thread_clock()
        self._ticker = threading.Thread(target=self._tick, name="quire-epoch", daemon=True)
        self._ticker.start()
        self.current: Any = None
        """The guest that is being called."""

    @property
    def raw(self) -> Any:
        return self._engine

    def _tick(self) -> None:
        """Advance the epoch by the guests' processor time; sleep while no guest is called."""
        while True:
            self._busy.wait()
            then_s, seen, num_idle = self._computed_s(), -1, 0
            while num_idle < _IDLE_TICKS:
                if self._closed:
                    return
                num_idle = num_idle + 1 if seen == self._num_calls else 0
                seen = self._num_calls
                time.sleep(EPOCH_S)
                ticks = int((self._computed_s() - then_s) / EPOCH_S)
                then_s += ticks * EPOCH_S
                for _ in range(ticks):
                    self.advance_epoch()
            self._busy.clear()
            if self._closed or seen != self._num_calls or self.current is not None:
                self._busy.set()  # a call or close() came after the check and found it set

    def advance_epoch(self) -> None:
        """Advance the epoch by one tick, for every instance."""
        self._engine.increment_epoch()
        if self.pool is not None:
            self.pool.engine.increment_epoch()

    def _computed_s(self) -> float:
        """Processor time of the thread that calls guests, so that load on the machine does not end
        guests; elapsed time if the system cannot read another thread's clock."""
        return time.monotonic() if self._clock is None else time.clock_gettime(self._clock)

    def enter(self, guest: object) -> None:
        self.current = guest
        self._num_calls += 1
        if not self._busy.is_set():  # waking a thread takes longer than most turns
            self._busy.set()

    def leave(self) -> None:
        self.current = None

    def answer(self, question: str) -> str:
        """Implement the import ``ask``. Only one guest runs at a time, and it is the one that
        asks."""
        guest: PythonGuest = self.current  # set, because a guest asks only within a call
        return guest.ask(question)

    def close(self) -> None:
        """End the ticking thread; every guest must have been closed. Idempotent."""
        self._closed = True
        self._busy.set()
        self._ticker.join()


def num_ticks(limit_s: float) -> int:
    """Epoch ticks for ``limit_s`` of computing; one is added because the first may come at once."""
    return math.ceil(limit_s / EPOCH_S) + 1


class PythonTemplate:
    """The compiled component, ready to be instantiated.

    ``compiled``: a file that ``compile_component`` created on this machine. It is machine code and
    is executed without further checks.
    """

    def __init__(self, engine: WasmEngine, compiled: Path) -> None:
        component = load_wasmtime().component
        self.engine = engine
        self._component = component.Component.deserialize_file(engine.raw, str(compiled))
        self._exports = {name: self._component.get_export_index(name) for name in _EXPORTS}
        self._linker = component.Linker(engine.raw)
        self._linker.allow_shadowing = True
        self._linker.define_unknown_imports_as_traps(self._component)
        for name in self._component.type.imports(engine.raw):
            self._define(name, component)
        with self._linker.root() as root:
            root.add_func("ask", lambda store, question: engine.answer(question))

    def _define(self, name: str, component: Any) -> None:
        functions = _imports(component).get(name.partition("@")[0])
        if functions is None:
            return
        with self._linker.root() as root, root.add_instance(name) as instance:
            for function, body in functions.items():
                instance.add_func(function, body)

    def instantiate(self, memory_bytes: int) -> PythonGuest:
        """A fresh guest with a memory limit of ``memory_bytes``."""
        wasmtime = load_wasmtime()
        store = wasmtime.Store(self.engine.raw)
        store.set_limits(memory_size=memory_bytes)
        store.set_epoch_deadline(_INSTANTIATE_TICKS)
        instance = self._linker.instantiate(store, self._component)
        return PythonGuest(self.engine, store, instance, self._exports)


def _imports(component: Any) -> dict[str, dict[str, Callable[..., Any]]]:
    """All imports of a guest except ``ask``."""

    def wall_clock(_: Any) -> Any:
        now = component.Record()
        now.seconds, now.nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        return now

    return {
        "wasi:random/random": {
            "get-random-bytes": lambda _, size: os.urandom(min(size, _MAX_RANDOM_BYTES)),
            "get-random-u64": lambda _: int.from_bytes(os.urandom(8), "little"),
        },
        "wasi:clocks/monotonic-clock": {
            "now": lambda _: time.monotonic_ns(),
            "resolution": lambda _: 1,
        },
        "wasi:clocks/wall-clock": {"now": wall_clock},
        "wasi:cli/environment": {
            "get-environment": lambda _: [],
            "get-arguments": lambda _: [],
            "initial-cwd": lambda _: None,
        },
        "wasi:filesystem/preopens": {"get-directories": lambda _: []},
    }


class PythonGuest:
    """One instance. Every call may raise ``GuestTrapped``, after which the guest is unusable.

    The guest's runner sets ``ask`` before the first call; it must not raise.
    """

    def __init__(
        self, engine: WasmEngine, store: Any, instance: Any, exports: Mapping[str, Any]
    ) -> None:
        self._engine = engine
        self._store = store
        self._instance = instance
        self._exports = exports
        self._has_trapped = False
        self.ask: Ask = _no_answer
        self.cpu_ns = 0

    def limit_memory(self, memory_bytes: int) -> None:
        self._store.set_limits(memory_size=memory_bytes)

    def warm(self, limit_s: float) -> None:
        """Touch the memory that every program needs; called before anything else."""
        self._call("warm", limit_s)

    def inspect(self, source: str, limit_s: float) -> str:
        return self._text("inspect", limit_s, source)

    def compile(self, source: str, limit_s: float) -> str:
        return self._text("compile", limit_s, source)

    def load(self, source: str, compiled: str, launch: str, limit_s: float) -> str:
        return self._text("load", limit_s, source, compiled, launch)

    def wake(self, events: str, limit_s: float) -> str:
        return self._text("wake", limit_s, events)

    def memory_bytes(self) -> int | None:
        """The size of its memory, which never shrinks; None after a trap, which has ended the
        instance."""
        if self._has_trapped:
            return None
        num_pages: int = self._call("memory-pages", _MEMORY_LIMIT_S)
        return num_pages * _PAGE_BYTES

    def _text(self, name: str, limit_s: float, *arguments: str) -> str:
        answer: str = self._call(name, limit_s, *arguments)
        return answer

    def _call(self, name: str, limit_s: float, *arguments: str) -> Any:
        store = self._store
        function = self._instance.get_func(store, self._exports[name])
        store.set_epoch_deadline(num_ticks(limit_s))
        started = time.thread_time_ns()
        self._engine.enter(self)
        try:
            answer = function(store, *arguments)
            function.post_return(store)
        except load_wasmtime().WasmtimeError as exc:
            self._has_trapped = True
            raise trapped(str(exc)) from exc
        finally:
            self._engine.leave()
            self.cpu_ns += time.thread_time_ns() - started
        return answer

    def close(self) -> None:
        """Free the instance's memory."""
        self._store.close()


def trapped(words: str) -> GuestTrapped:
    """The trap in wasmtime's message, which is a backtrace of the interpreter followed by the
    cause."""
    _, _, cause = words.rpartition("Caused by:")
    return GuestTrapped(cause.strip(), interrupted="wasm trap: interrupt" in words)


def _no_answer(question: str) -> str:
    raise AssertionError("the guest's runner has not set ask")
