"""One instance of a core module, called through the wasmtime package or the C functions below it.

The package asks for a function's type and builds a dozen objects for each call: 30 us, several
times what a turn computes. Where its parts are those known here, instances are made and called by
the C API that it binds; with a release that has others, through the package. Both raise the
package's errors. Must not know what the functions mean.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from quire.programs.sandbox.wasm import load_wasmtime

MAX_VALUES = 2
"""Parameters of a function that can be called here; it has one result at most."""

Functions = Mapping[str, int]
"""Exports that take so many i32 and return one i32, or take and return nothing; no others are
called."""


class Instance(Protocol):
    """What it raises is the package's ``Trap`` or ``WasmtimeError``, or an import's own error."""

    def call(self, name: str, *arguments: int) -> int:
        """An export of ``Functions``; its result as an unsigned number, 0 without one."""
        ...

    def memory_size(self) -> int:
        """In bytes: it never becomes smaller."""
        ...

    def memory_base(self) -> int:
        """Where it is: elsewhere only after it has become larger."""
        ...


class PackageInstance:
    """``Instance`` by what the package documents."""

    def __init__(self, store: Any, instance_pre: Any) -> None:
        self._store = store
        self._exports = instance_pre.instantiate(store).exports(store)
        self._memory = self._exports["memory"]

    def call(self, name: str, *arguments: int) -> int:
        result = self._exports[name](self._store, *map(_signed, arguments))
        return 0 if result is None else int(result) & 0xFFFFFFFF

    def memory_size(self) -> int:
        size: int = self._memory.data_len(self._store)
        return size

    def memory_base(self) -> int:
        return ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value or 0


class DirectCalls:
    """The C functions and the package's ways to make errors of what they return. One thread's.

    Raises:
        AttributeError: this release of the package has not all of them.
    """

    def __init__(self) -> None:
        package = load_wasmtime()
        c: Any = package._bindings
        self._error_type: Any = ctypes.POINTER(c.wasmtime_error_t)
        self._error_of: Callable[[Any], Exception] = package.WasmtimeError._from_ptr
        self._trap_of: Callable[[Any], Exception] = package.Trap._from_ptr
        self.raise_of_import: Callable[[], None] = package._func.maybe_raise_last_exn
        self.context_of: Callable[[Any], Any] = package.Store._context
        self.instance_type: Any = c.wasmtime_instance_t
        self.extern_type: Any = c.wasmtime_extern_t
        self.extern_bytes = ctypes.sizeof(c.wasmtime_extern_t)
        self.extern_value: int = c.wasmtime_extern_t.of.offset
        self.function_kind: int = package._ffi.WASMTIME_EXTERN_FUNC.value
        self.memory_kind: int = package._ffi.WASMTIME_EXTERN_MEMORY.value
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self.instantiate = _returning(address, c._wasmtime_instance_pre_instantiate)
        self.find_export = _returning(ctypes.c_bool, c._wasmtime_instance_export_get)
        self.call = _returning(address, c._wasmtime_func_call_unchecked)
        self.memory_size = _returning(size, c._wasmtime_memory_data_size)
        self.memory_data = _returning(address, c._wasmtime_memory_data)
        self.values = (c.wasmtime_val_raw_t * MAX_VALUES)()
        self.value_words = ctypes.sizeof(c.wasmtime_val_raw_t) // 4
        self.words = (ctypes.c_uint32 * (MAX_VALUES * self.value_words)).from_buffer(self.values)
        self._trap_type: Any = ctypes.POINTER(c.wasm_trap_t)
        self._renew_trap()

    def _renew_trap(self) -> None:
        self.trap = self._trap_type()
        self.trap_address = ctypes.byref(self.trap)

    def error(self, error: int | None) -> Exception:
        """Of a function that has returned ``error`` or left a trap."""
        if error:
            return self._error_of(ctypes.cast(error, self._error_type))
        trap = self.trap
        self._renew_trap()
        return self._trap_of(trap)


def _returning(result: Any, function: Any) -> Any:
    """The same C function with numbers for addresses: a pointer object costs more than the call."""
    made = ctypes.CFUNCTYPE(result, *map(_plain, function.argtypes))
    return made(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _plain(kind: Any) -> Any:
    return ctypes.c_void_p if issubclass(kind, ctypes._Pointer) else kind


class DirectInstance:
    """``Instance`` by the C API. ``functions`` are all that may be called: C does not check."""

    __slots__ = (
        "_c", "_context", "_externs", "_found", "_instance", "_instance_address", "_memory",
        "_num_parameters", "_start", "_store",
    )  # fmt: skip

    def __init__(
        self, direct: DirectCalls, store: Any, instance_pre: Any, functions: Functions
    ) -> None:
        self._c = direct
        self._store = store
        self._context = direct.context_of(store)
        self._num_parameters = functions
        self._found: dict[str, int] = {}
        self._instance = direct.instance_type()
        self._instance_address = ctypes.byref(self._instance)
        error = direct.instantiate(
            instance_pre.ptr(), self._context, self._instance_address, direct.trap_address
        )
        if error or direct.trap:
            self._fail(error)
        self._externs = (direct.extern_type * (1 + len(functions)))()
        self._start = ctypes.addressof(self._externs)
        self._memory = self._export(0, "memory", direct.memory_kind)

    def call(self, name: str, *arguments: int) -> int:
        function = self._found.get(name) or self._find(name)
        if len(arguments) != self._num_parameters[name]:
            raise TypeError(f"{name} has {self._num_parameters[name]} parameters")
        c = self._c
        words = c.words
        words[0] = 0
        place = 0
        for argument in arguments:
            words[place] = argument
            place += c.value_words
        error = c.call(self._context, function, c.values, MAX_VALUES, c.trap_address)
        if error or c.trap:
            self._fail(error)
        return int(words[0])

    def memory_size(self) -> int:
        size: int = self._c.memory_size(self._context, self._memory)
        return size

    def memory_base(self) -> int:
        return self._c.memory_data(self._context, self._memory) or 0

    def _find(self, name: str) -> int:
        if name not in self._num_parameters:
            raise KeyError(name)
        found = self._export(1 + len(self._found), name, self._c.function_kind)
        self._found[name] = found
        return found

    def _export(self, index: int, name: str, kind: int) -> int:
        """The address of the C value of the export ``name``, which is kept at ``index``."""
        c, text = self._c, name.encode()
        place = self._start + index * c.extern_bytes
        found = c.find_export(self._context, self._instance_address, text, len(text), place)
        if not found or self._externs[index].kind != kind:
            raise KeyError(name)
        return place + c.extern_value

    def _fail(self, error: int | None) -> None:
        raised = self._c.error(error)
        self._c.raise_of_import()  # the cause, if it was a function of ours
        raise raised


def find_direct_calls() -> DirectCalls | None:
    """``None``: the package is another one than those known here."""
    try:
        return DirectCalls()
    except AttributeError:
        return None


def _signed(number: int) -> int:
    """As wasmtime wants an i32."""
    return number - (1 << 32) if number >= 1 << 31 else number


__all__ = [
    "MAX_VALUES",
    "DirectCalls",
    "DirectInstance",
    "Functions",
    "Instance",
    "PackageInstance",
    "find_direct_calls",
]
