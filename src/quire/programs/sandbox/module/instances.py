"""One instance of a core module, called through the wasmtime package or its C functions.

The package queries a function's type and creates a dozen objects for each call: 30 us, several
times as long as a turn computes (docs/decisions/158-what-the-sandbox-saves.md). If the package has
the expected internals, instances are created and called through the C API that it binds; otherwise
through the package. Both raise the package's errors. Must not know what the functions mean.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quire.programs.sandbox.wasm.engine import load_wasmtime
from quire.programs.sandbox.wasm.instance_pool import MAX_TABLE_ELEMENTS, MAX_TABLES

MAX_VALUES = 2
"""Parameters of a function that can be called here; it has at most one result."""

Functions = Mapping[str, int]
"""The number of parameters of each callable export: it takes i32 and returns one i32, or takes and
returns nothing."""


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """The limits of one instance. ``table_elements``: the size of each table."""

    memory_bytes: int
    table_elements: int = MAX_TABLE_ELEMENTS
    num_tables: int = MAX_TABLES


class Instance(Protocol):
    """One instance, in its own store. Raises the package's ``Trap`` or ``WasmtimeError``, or an
    import's own error."""

    def allow(self, num_ticks: int) -> None:
        """Let the instance compute until ``num_ticks`` epoch ticks from now.

        Raises:
            ValueError: the instance was closed.
        """
        ...

    def begin(self) -> None:
        """Create the instance, which runs its start function; before any call."""
        ...

    def call(self, name: str, *arguments: int) -> int:
        """Call an export of ``Functions``; return its result as an unsigned number, 0 if it has
        none."""
        ...

    def memory_size(self) -> int:
        """The size of its memory in bytes. It never decreases."""
        ...

    def memory_base(self) -> int:
        """The address of its memory. It changes only when the memory has grown."""
        ...

    def close(self) -> None:
        """Free its memory; no other method may be called afterwards. Idempotent."""
        ...


OnFreed = Callable[[], object]
"""Called once, after the memory of an instance was freed."""


class PackageInstance:
    """``Instance`` through the package's documented interface."""

    def __init__(
        self,
        engine: Any,
        instance_pre: Any,
        limits: InstanceLimits,
        on_freed: OnFreed | None = None,
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
    """The C functions, and the package's conversions of their errors. Used by one thread.

    Raises:
        AttributeError: this release of the package lacks some of them.
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
        """The error of a function that has returned ``error`` or left a trap."""
        if error:
            return self._error_of(ctypes.cast(error, self._error_type))
        trap = self.trap
        self._renew_trap()
        return self._trap_of(trap)


def _words(kind: Any) -> int:
    """The number of eight-byte words of a C value."""
    return -(-ctypes.sizeof(kind) // 8)


def _returning(result: Any, function: Any) -> Any:
    """The same C function with numbers for addresses, because a pointer object takes longer than
    the call."""
    made = ctypes.CFUNCTYPE(result, *map(_plain, function.argtypes))
    return made(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _plain(kind: Any) -> Any:
    is_number = issubclass(kind, ctypes._SimpleCData)
    return kind if is_number else ctypes.c_void_p


class DirectTemplate:
    """The common part of the instances of one module. ``functions``: all exports that may be
    called, because C does not check. ``engine`` and ``instance_pre`` are kept as long as any
    instance."""

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
        """The address of each name as C reads it, and its length in bytes."""
        num_words = direct.instance_words + (1 + len(functions)) * direct.extern_words
        self.block_type = ctypes.c_uint64 * num_words
        """The instance, its memory, and its functions in the order of their first use."""


class DirectInstance:
    """``Instance`` through the C API."""

    __slots__ = (
        "_address", "_block", "_context", "_found", "_memory", "_on_freed", "_store", "_template",
    )  # fmt: skip

    def __init__(
        self, template: DirectTemplate, limits: InstanceLimits, on_freed: OnFreed | None = None
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
            raise ValueError("the instance was closed")  # the C API does not check
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
        """The address of the C value of the export ``name``, which is stored at ``index``."""
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
        c.raise_of_import()  # the cause, if an imported function raised
        raise raised


def find_direct_calls() -> DirectCalls | None:
    """``None`` if the package does not have the expected internals."""
    try:
        return DirectCalls()
    except AttributeError:
        return None


def _signed(number: int) -> int:
    """The signed form of an i32, which wasmtime expects."""
    return number - (1 << 32) if number >= 1 << 31 else number
