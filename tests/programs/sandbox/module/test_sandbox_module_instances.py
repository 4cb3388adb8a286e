"""Calls of core modules, through the package and through the C functions below it: the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from quire.programs.sandbox.module.instances import (
    DirectInstance,
    DirectTemplate,
    Instance,
    InstanceLimits,
    PackageInstance,
    find_direct_calls,
)
from quire.programs.sandbox.module.wasm_module import callable_exports
from quire.programs.sandbox.wasm.instance_pool import find_pool

wasmtime = pytest.importorskip("wasmtime")

MODULE = """
(module
  (import "host" "ask" (func $ask (param i32) (result i32)))
  (memory (export "memory") 1)
  (global $begun (mut i32) (i32.const 0))
  (func (export "_initialize") (global.set $begun (i32.const 7)))
  (func (export "begun") (result i32) (global.get $begun))
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "store") (param i32 i32) (result i32)
    (i32.store (local.get 0) (local.get 1)) (i32.const 1))
  (func (export "ask") (param i32) (result i32) (call $ask (local.get 0)))
  (func (export "spin") (result i32) (loop $again (br $again)) (i32.const 0))
  (func (export "fall") (result i32) (unreachable))
  (func (export "größe") (result i32) (i32.const 3))
  (func (export "wide") (param i64) (result i32) (i32.const 0))
  (func (export "three") (param i32 i32 i32) (result i32) (i32.const 0))
  (func (export "silent") (param i32)))
"""


class Module:
    """One compiled module; ``make`` gives instances of it, ``ask`` is its import."""

    def __init__(self, *, pooled: bool) -> None:
        config = wasmtime.Config()
        config.epoch_interruption = True
        pool = find_pool(wasmtime, config, 8) if pooled else None
        assert (pool is not None) == pooled
        self.engine = wasmtime.Engine(config) if pool is None else pool.engine
        self._module = wasmtime.Module(self.engine, wasmtime.wat2wasm(MODULE))
        self.functions = callable_exports(self._module)
        self.ask: Callable[[int], int] = lambda number: number + 1
        linker = self._linker = wasmtime.Linker(self.engine)
        i32 = wasmtime.ValType.i32()
        linker.define_func(
            "host", "ask", wasmtime.FuncType([i32], [i32]), lambda number: self.ask(number)
        )
        self.pre = linker.instantiate_pre(self._module)
        self.instances: list[Instance] = []

    def close(self) -> None:
        """A pool has thousands of mappings, and a process may have some tens of thousands."""
        for instance in self.instances:
            instance.close()
        for part in (self.pre, self._linker, self._module, self.engine):
            part.close()

    def instance(self, *, direct: bool, memory_bytes: int = 1 << 24) -> Instance:
        limits = InstanceLimits(memory_bytes, 1 << 10)
        made: Instance
        if direct:
            calls = find_direct_calls()
            assert calls is not None, "this release of wasmtime has other parts: calls are slow"
            made = DirectInstance(
                DirectTemplate(calls, self.engine, self.pre, self.functions), limits
            )
        else:
            made = PackageInstance(self.engine, self.pre, limits)
        self.instances.append(made)
        made.allow(1)
        made.begin()
        return made


@pytest.fixture(params=[False, True], ids=["mapped", "pooled"])
def module(request: pytest.FixtureRequest) -> Iterator[Module]:
    made = Module(pooled=request.param)
    yield made
    made.close()


Make = Callable[..., Instance]


@pytest.fixture(params=["package", "direct"])
def make(request: pytest.FixtureRequest, module: Module) -> Make:
    return partial(module.instance, direct=request.param == "direct")


def test_exports_of_other_types_are_not_called(module: Module) -> None:
    assert module.functions == {
        "_initialize": 0, "begun": 0, "add": 2, "grow": 1, "store": 2, "ask": 1, "spin": 0,
        "fall": 0, "größe": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["wide", "three", "silent", "memory", "none"])
def test_what_may_not_be_called_is_an_error(module: Module, name: str) -> None:
    instance = module.instance(direct=True)
    with pytest.raises(KeyError, match=name):
        instance.call(name)
    with pytest.raises(TypeError, match="add has 2 parameters"):
        instance.call("add", 1)


def test_numbers_go_in_and_out_as_unsigned(make: Make) -> None:
    instance = make()
    assert instance.call("add", 2, 3) == 5
    assert instance.call("add", 0xFFFFFFFF, 3) == 2
    assert instance.call("add", 0x80000000, 1) == 0x80000001


def test_a_name_is_as_long_as_its_bytes(make: Make) -> None:
    assert make().call("größe") == 3


def test_a_function_without_result_gives_0(make: Make) -> None:
    instance = make()
    instance.call("add", 2, 3)
    assert instance.call("begun") == 0
    assert instance.call("_initialize") == 0
    assert instance.call("begun") == 7


def test_instances_share_nothing(make: Make) -> None:
    one, other = make(), make()
    one.call("_initialize")
    assert (one.call("begun"), other.call("begun")) == (7, 0)


def test_the_memory_is_seen_as_it_is_now(make: Make) -> None:
    instance = make()
    assert instance.memory_size() == 1 << 16
    assert instance.call("store", 4, 0x01020304) == 1
    assert ctypes.string_at(instance.memory_base() + 4, 4) == b"\4\3\2\1"
    assert instance.call("grow", 0) == 1
    assert instance.call("grow", 2) == 1
    assert instance.memory_size() == 3 << 16
    assert instance.call("store", (3 << 16) - 4, 0x01020304) == 1
    assert ctypes.string_at(instance.memory_base() + (3 << 16) - 4, 4) == b"\4\3\2\1"


def test_memory_is_limited(make: Make) -> None:
    instance = make(memory_bytes=1 << 17)
    assert instance.call("grow", 2) == 0xFFFFFFFF
    assert instance.call("grow", 1) == 1


def test_a_trap_is_the_packages_error_and_the_next_call_works(make: Make) -> None:
    instance = make()
    for _ in range(2):
        with pytest.raises(wasmtime.Trap, match="unreachable") as caught:
            instance.call("fall")
        assert caught.value.trap_code is wasmtime.TrapCode.UNREACHABLE
    with pytest.raises(wasmtime.Trap, match="out of bounds"):
        instance.call("store", 1 << 20, 1)
    assert instance.call("add", 1, 1) == 2


def test_a_call_ends_with_its_time(module: Module, make: Make) -> None:
    instance = make()
    module.engine.increment_epoch()
    with pytest.raises(wasmtime.Trap) as caught:
        instance.call("spin")
    assert caught.value.trap_code is wasmtime.TrapCode.INTERRUPT


def test_an_imports_own_error_comes_through(module: Module, make: Make) -> None:
    instance = make()
    assert instance.call("ask", 4) == 5

    def fails(number: int) -> int:
        raise ZeroDivisionError(number)

    module.ask = fails
    with pytest.raises(ZeroDivisionError, match="4"):
        instance.call("ask", 4)
    module.ask = lambda number: number
    assert instance.call("ask", 6) == 6, "the error is told once"


def test_an_instance_that_does_not_fit_is_the_packages_error(make: Make) -> None:
    with pytest.raises(wasmtime.WasmtimeError, match="memory minimum size"):
        make(memory_bytes=1000)


def test_another_release_is_called_through_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(wasmtime._bindings, "_wasmtime_func_call_unchecked")
    assert find_direct_calls() is None


def test_an_instance_that_was_never_begun_is_closed_once(module: Module) -> None:
    calls = find_direct_calls()
    assert calls is not None
    template = DirectTemplate(calls, module.engine, module.pre, module.functions)
    for instance in (
        DirectInstance(template, InstanceLimits(1 << 24, 1)),
        PackageInstance(module.engine, module.pre, InstanceLimits(1 << 24, 1)),
    ):
        instance.close()
        instance.close()
        with pytest.raises(ValueError, match="closed"):
            instance.allow(1)
