"""One instance of a core module, called through the wasmtime package or the C functions below it.

The package asks for a function's type and builds a dozen objects for each call: 30 us, several
times what a turn computes. Where its parts are those known here, instances are made and called by
the C API that it binds; with a release that has others, through the package. Both raise the
package's errors. Must not know what the functions mean.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quire.programs.sandbox.wasm.engine import load_wasmtime
from quire.programs.sandbox.wasm.instance_pool import MAX_TABLE_ELEMENTS, MAX_TABLES

MAX_VALUES = 2
"""Parameters of a function that can be called here; it has one result at most."""

Functions = Mapping[str, int]
"""Exports that take so many i32 and return one i32, or take and return nothing; no others are
called."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Of one instance. ``table_elements``: of each table."""

    memory_bytes: int
    table_elements: int = MAX_TABLE_ELEMENTS
    num_tables: int = MAX_TABLES


class Instance(Protocol):
    """One instance, in a store of its own. What it raises is the package's ``Trap`` or
    ``WasmtimeError``, or an import's own error."""

    def allow(self, num_ticks: int) -> None:
        """It may compute until the engine's epoch is so much later than now.

        Raises:
            ValueError: it was closed.
        """
        ...

    def begin(self) -> None:
        """Make the instance, which runs its start function; before any call."""
        ...

    def call(self, name: str, *arguments: int) -> int:
        """An export of ``Functions``; its result as an unsigned number, 0 without one."""
        ...

    def memory_size(self) -> int:
        """In bytes: it never becomes smaller."""
        ...

    def memory_base(self) -> int:
        """Where it is: elsewhere only after it has become larger."""
        ...

    def close(self) -> None:
        """Free its memory; nothing else may be called any more. Idempotent."""
        ...


OnFreed = Callable[[], object]
"""Called once, when the memory of an instance has been freed."""


class PackageInstance:
    """``Instance`` by what the package documents."""

    def __init__(
        self, engine: Any, instance_pre: Any, limits: StoreLimits, on_freed: OnFreed | None = None
    ) -> None:
        self._on_freed = on_freed
        self._instance_pre = instance_pre
        self._store = load_wasmtime().Store(engine)
        self._store.set_limits(
            memory_size=limits.memory_bytes,
            table_elements=limits.table_elements,
            instances=1,
            tables=limits.num_tables,
            memories=1,
        )

    def allow(self, num_ticks: int) -> None:
        self._store.set_epoch_deadline(num_ticks)

    def begin(self) -> None:
        self._exports = self._instance_pre.instantiate(self._store).exports(self._store)
        self._memory = self._exports["memory"]

    def call(self, name: str, *arguments: int) -> int:
        result = self._exports[name](self._store, *map(_signed, arguments))
        return 0 if result is None else int(result) & 0xFFFFFFFF

    def memory_size(self) -> int:
        size: int = self._memory.data_len(self._store)
        return size

    def memory_base(self) -> int:
        return ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value or 0

    def close(self) -> None:
        self._store.close()
        on_freed, self._on_freed = self._on_freed, None
        if on_freed is not None:
            on_freed()


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
        self.function_kind: int = package._ffi.WASMTIME_EXTERN_FUNC.value
        self.memory_kind: int = package._ffi.WASMTIME_EXTERN_MEMORY.value
        self.instance_words = _words(c.wasmtime_instance_t)
        self.extern_words = _words(c.wasmtime_extern_t)
        self.extern_value: int = c.wasmtime_extern_t.of.offset
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self.new_store = _returning(address, c._wasmtime_store_new)
        self.store_context = _returning(address, c._wasmtime_store_context)
        self.limit_store = _returning(None, c._wasmtime_store_limiter)
        self.delete_store = _returning(None, c._wasmtime_store_delete)
        self.set_deadline = _returning(None, c._wasmtime_context_set_epoch_deadline)
        self.instantiate = _returning(address, c._wasmtime_instance_pre_instantiate)
        self.find_export = _returning(ctypes.c_bool, c._wasmtime_instance_export_get)
        self.call = _returning(address, c._wasmtime_func_call_unchecked)
        self.memory_size = _returning(size, c._wasmtime_memory_data_size)
        self.memory_data = _returning(address, c._wasmtime_memory_data)
        values = (c.wasmtime_val_raw_t * MAX_VALUES)()
        self.values_address = ctypes.addressof(values)
        self.value_words = ctypes.sizeof(c.wasmtime_val_raw_t) // 4
        self.numbers = (ctypes.c_uint32 * (MAX_VALUES * self.value_words)).from_buffer(values)
        self._trap_type: Any = ctypes.POINTER(c.wasm_trap_t)
        self._renew_trap()

    def _renew_trap(self) -> None:
        self.trap = self._trap_type()
        self.trap_address = ctypes.addressof(self.trap)

    def error(self, error: int | None) -> Exception:
        """Of a function that has returned ``error`` or left a trap."""
        if error:
            return self._error_of(ctypes.cast(error, self._error_type))
        trap = self.trap
        self._renew_trap()
        return self._trap_of(trap)


def _words(kind: Any) -> int:
    """Of eight bytes, that a C value takes."""
    return -(-ctypes.sizeof(kind) // 8)


def _returning(result: Any, function: Any) -> Any:
    """The same C function with numbers for addresses: a pointer object costs more than the call."""
    made = ctypes.CFUNCTYPE(result, *map(_plain, function.argtypes))
    return made(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _plain(kind: Any) -> Any:
    is_number = issubclass(kind, ctypes._SimpleCData)
    return kind if is_number else ctypes.c_void_p


class DirectTemplate:
    """What the instances of one module share. ``functions`` are all of it that may be called: C
    does not check. ``engine`` and ``instance_pre`` stay as long as any instance."""

    def __init__(
        self, direct: DirectCalls, engine: Any, instance_pre: Any, functions: Functions
    ) -> None:
        self.c = direct
        self._kept = engine, instance_pre
        self.engine = ctypes.cast(engine.ptr(), ctypes.c_void_p).value
        self.instance_pre = ctypes.cast(instance_pre.ptr(), ctypes.c_void_p).value
        self.num_parameters = functions
        texts = {name: name.encode() for name in (*functions, "memory")}
        self._texts = {name: ctypes.create_string_buffer(text) for name, text in texts.items()}
        self.names = {
            name: (ctypes.addressof(self._texts[name]), len(text)) for name, text in texts.items()
        }
        """Where each stands as C reads it, and its bytes."""
        num_words = direct.instance_words + (1 + len(functions)) * direct.extern_words
        self.block_type = ctypes.c_uint64 * num_words
        """The instance, its memory, and its functions in the order in which they are asked for."""


class DirectInstance:
    """``Instance`` by the C API."""

    __slots__ = (
        "_address", "_block", "_context", "_found", "_memory", "_on_freed", "_store", "_template",
    )  # fmt: skip

    def __init__(
        self, template: DirectTemplate, limits: StoreLimits, on_freed: OnFreed | None = None
    ) -> None:
        c = template.c
        self._on_freed = on_freed
        self._template = template
        self._found: dict[str, int] = {}
        self._block = template.block_type()
        self._address = ctypes.addressof(self._block)
        self._store = c.new_store(template.engine, None, None)
        self._context = c.store_context(self._store)
        c.limit_store(
            self._store, limits.memory_bytes, limits.table_elements, 1, limits.num_tables, 1
        )

    def allow(self, num_ticks: int) -> None:
        if self._store is None:
            raise ValueError("the instance was closed")  # C would not notice
        self._template.c.set_deadline(self._context, num_ticks)

    def begin(self) -> None:
        template = self._template
        c = template.c
        error = c.instantiate(template.instance_pre, self._context, self._address, c.trap_address)
        if error or c.trap:
            self._fail(error)
        self._memory = self._export(0, "memory", c.memory_kind)

    def call(self, name: str, *arguments: int) -> int:
        function = self._found.get(name) or self._find(name)
        template = self._template
        if len(arguments) != template.num_parameters[name]:
            raise TypeError(f"{name} has {template.num_parameters[name]} parameters")
        c = template.c
        numbers = c.numbers
        numbers[0] = place = 0
        for argument in arguments:
            numbers[place] = argument
            place += c.value_words
        error = c.call(self._context, function, c.values_address, MAX_VALUES, c.trap_address)
        if error or c.trap:
            self._fail(error)
        result: int = numbers[0]
        return result

    def memory_size(self) -> int:
        size: int = self._template.c.memory_size(self._context, self._memory)
        return size

    def memory_base(self) -> int:
        return self._template.c.memory_data(self._context, self._memory) or 0

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            self._template.c.delete_store(store)
            self._context = None
            if self._on_freed is not None:
                self._on_freed()

    def __del__(self) -> None:
        self.close()

    def _find(self, name: str) -> int:
        template = self._template
        if name not in template.num_parameters:
            raise KeyError(name)
        found = self._export(1 + len(self._found), name, template.c.function_kind)
        self._found[name] = found
        return found

    def _export(self, index: int, name: str, kind: int) -> int:
        """The address of the C value of the export ``name``, which is kept at ``index``."""
        template = self._template
        c, (text, num_bytes) = template.c, template.names[name]
        word = c.instance_words + index * c.extern_words
        place = self._address + 8 * word
        found = c.find_export(self._context, self._address, text, num_bytes, place)
        if not found or self._block[word] & 0xFF != kind:
            raise KeyError(name)
        address: int = place + c.extern_value
        return address

    def _fail(self, error: int | None) -> None:
        c = self._template.c
        raised = c.error(error)
        c.raise_of_import()  # the cause, if it was a function of ours
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
