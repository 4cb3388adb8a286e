"""The function of a built component that tells the size of its memory."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.programs.sandbox.python.binary_format import section, sections
from quire.programs.sandbox.python.memory_size import with_memory_size
from quire.programs.sandbox.wasm.engine import load_wasmtime

COMPONENT_HEADER = b"\0asm\x0d\0\x01\0"
IMPORTS = """
  (import "env" "table" (table 1 8 funcref))
  (import "env" "log" (func $log (param i32)))
  (import "env" "memory" (memory 2))
  (import "env" "global" (global i32))
  (import "env" "more" (func $more (param i32)))
"""
FUNCTIONS = """
  (func (export "before") (result i32) i32.const 5)
  (func (export "memory-pages") (result i32) (local i32) i32.const 7 call $log i32.const 7)
  (func (export "cabi_post_memory-pages") (param i32) unreachable)
  (func (export "after") (result i32) i32.const 9)
"""


def core_module(*parts: str) -> bytes:
    return bytes(load_wasmtime().wat2wasm(f"(module {' '.join(parts)})"))


def component(*modules: bytes) -> bytes:
    return COMPONENT_HEADER + b"".join(section(1, module) for module in modules)


def modules_of(built: bytes) -> list[bytes]:
    return [built[start:end] for _, start, end in sections(built)]


class Running:
    """An instance of a module with ``IMPORTS`` whose imported functions trap."""

    def __init__(self, module: bytes) -> None:
        w = load_wasmtime()
        self.store = w.Store()
        i32, unbounded = w.ValType.i32(), w.Limits(2, None)
        self.memory = w.Memory(self.store, w.MemoryType(unbounded))
        table = w.Table(self.store, w.TableType(w.ValType.funcref(), w.Limits(1, 8)), None)
        constant = w.Global(self.store, w.GlobalType(i32, mutable=False), w.Val.i32(0))
        log = w.Func(self.store, w.FuncType([i32], []), self._refuse)
        given = [table, log, self.memory, constant, log]
        made = w.Instance(self.store, w.Module(self.store.engine, module), given)
        self._exports = made.exports(self.store)

    def _refuse(self, number: int) -> None:
        raise AssertionError(f"the old body ran: {number}")

    def call(self, name: str, *arguments: int) -> Any:
        return self._exports[name](self.store, *arguments)


def test_the_function_returns_the_pages_of_the_memory_and_all_others_stay() -> None:
    (module,) = modules_of(with_memory_size(component(core_module(IMPORTS, FUNCTIONS))))
    running = Running(module)
    assert running.call("memory-pages") == 2
    running.call("cabi_post_memory-pages", 2)
    running.memory.grow(running.store, 300)
    assert running.call("memory-pages") == 302
    assert (running.call("before"), running.call("after")) == (5, 9)


def test_other_modules_of_the_component_stay_as_they_are() -> None:
    passing_on = core_module(
        '(import "env" "memory-pages" (func $size (result i32)))',
        '(import "env" "post" (func $post (param i32)))',
        '(export "memory-pages" (func $size)) (export "cabi_post_memory-pages" (func $post))',
    )
    others = core_module('(memory (export "memory-pages") 1)'), passing_on
    made = with_memory_size(component(others[0], core_module(IMPORTS, FUNCTIONS), others[1]))
    assert [one in others for one in modules_of(made)] == [True, False, True]


@pytest.mark.parametrize(
    "parts",
    [
        (IMPORTS,),
        (IMPORTS, FUNCTIONS.replace("cabi_post_memory-pages", "other")),
        ('(memory (export "memory-pages") 1)',),
    ],
    ids=["no functions", "no function that frees the answer", "a memory of that name"],
)
def test_a_component_without_the_function_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="tells its memory"):
        with_memory_size(component(core_module(*parts)))
