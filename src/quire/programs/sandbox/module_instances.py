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

    def memory(self) -> tuple[int, int]:
        """Where its memory is now, and how many bytes it has."""
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

    def memory(self) -> tuple[int, int]:
        address = ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value or 0
        return address, self._memory.data_len(self._store)


class DirectCalls:
    """The C functions and the package's ways to make errors of what they return.

    Raises:
        AttributeError: this release of the package has not all of them.
    """

    def __init__(self) -> None:
        package = load_wasmtime()
        c: Any = package._bindings
        self.error_of: Callable[[Any], Exception] = package.WasmtimeError._from_ptr
        self.trap_of: Callable[[Any], Exception] = package.Trap._from_ptr
        self.raise_of_import: Callable[[], None] = package._func.maybe_raise_last_exn
        self.context_of: Callable[[Any], Any] = package.Store._context
        self.instance_type: Any = c.wasmtime_instance_t
        self.extern_type: Any = c.wasmtime_extern_t
        self.function_kind: int = package._ffi.WASMTIME_EXTERN_FUNC.value
        self.memory_kind: int = package._ffi.WASMTIME_EXTERN_MEMORY.value
        self.instantiate = c._wasmtime_instance_pre_instantiate
        self.find_export = c._wasmtime_instance_export_get
        self.call = c._wasmtime_func_call_unchecked
        self.memory_size = c._wasmtime_memory_data_size
        self.memory_data = _returning_address(c._wasmtime_memory_data)
        self.values = (c.wasmtime_val_raw_t * MAX_VALUES)()
        self.no_trap: Any = ctypes.POINTER(c.wasm_trap_t)


def _returning_address(function: Any) -> Any:
    """The same C function with a number as its result, not a pointer object."""
    made = ctypes.CFUNCTYPE(ctypes.c_void_p, *function.argtypes)
    return made(ctypes.cast(function, ctypes.c_void_p).value or 0)


class DirectInstance:
    """``Instance`` by the C API. ``functions`` are all that may be called: C does not check."""

    def __init__(
        self, direct: DirectCalls, store: Any, instance_pre: Any, functions: Functions
    ) -> None:
        self._c = direct
        self._store = store
        self._context = direct.context_of(store)
        self._num_parameters = functions
        self._found: dict[str, Any] = {}
        self._instance = direct.instance_type()
        trap = direct.no_trap()
        error = direct.instantiate(
            instance_pre.ptr(), self._context, ctypes.byref(self._instance), ctypes.byref(trap)
        )
        if error or trap:
            self._fail(error, trap)
        self._memory = ctypes.byref(self._export("memory", direct.memory_kind).memory)

    def call(self, name: str, *arguments: int) -> int:
        function = self._found.get(name)
        if function is None:
            function = self._find(name)
        if len(arguments) != self._num_parameters[name]:
            raise TypeError(f"{name} has {self._num_parameters[name]} parameters")
        c = self._c
        values = c.values
        values[0].i32 = 0
        for index, argument in enumerate(arguments):
            values[index].i32 = argument
        trap = c.no_trap()
        error = c.call(self._context, function, values, MAX_VALUES, ctypes.byref(trap))
        if error or trap:
            self._fail(error, trap)
        return int(values[0].i32) & 0xFFFFFFFF

    def memory(self) -> tuple[int, int]:
        c = self._c
        address = c.memory_data(self._context, self._memory)
        return address or 0, c.memory_size(self._context, self._memory)

    def _find(self, name: str) -> Any:
        if name not in self._num_parameters:
            raise KeyError(name)
        self._found[name] = found = ctypes.byref(self._export(name, self._c.function_kind).func)
        return found

    def _export(self, name: str, kind: int) -> Any:
        """The C union of the export ``name``."""
        c, text = self._c, name.encode()
        item = c.extern_type()
        found = c.find_export(
            self._context, ctypes.byref(self._instance), text, len(text), ctypes.byref(item)
        )
        if not found or item.kind != kind:
            raise KeyError(name)
        return item.of

    def _fail(self, error: Any, trap: Any) -> None:
        raised = self._c.error_of(error) if error else self._c.trap_of(trap)
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
