"""A compiled guest within its turns: its time, its memory, what its initialisers may do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.sandbox.module.wasm_module import ModuleGuest, ModuleTemplate, compile_module
from quire.programs.sandbox.wasm.engine import EPOCH_S, GuestTrapped, WasmEngine

wasmtime = pytest.importorskip("wasmtime")

MODULE = """
(module
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_initialize") (drop (call $random (i32.const 16) (i32.const 64))))
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "fall") (result i32) (unreachable))
  (func (export "spin") (result i32) (loop $again (br $again)) (i32.const 0)))
"""


@pytest.fixture(params=[0, 8], ids=["mapped", "pooled"])
def engine(request: pytest.FixtureRequest) -> Iterator[WasmEngine]:
    made = WasmEngine(num_places=request.param)
    yield made
    made.close()


@pytest.fixture
def template(engine: WasmEngine, tmp_path: Path) -> ModuleTemplate:
    compiled = tmp_path / "module.cwasm"
    compiled.write_bytes(compile_module(wasmtime.wat2wasm(MODULE)))
    return ModuleTemplate(engine, compiled, {"add": 2})


@pytest.fixture
def guest(template: ModuleTemplate) -> Iterator[ModuleGuest]:
    made = template.new_guest(1 << 20)
    yield made
    made.close()


def test_all_calls_of_a_turn_share_its_time(engine: WasmEngine, guest: ModuleGuest) -> None:
    guest.turn(1.0, guest.call, "add", 1, 2)  # its instance is made

    def computes_between_two_calls() -> int:
        assert guest.call("add", 1, 2) == 3
        for _ in range(8):
            engine.advance_epoch()
        return guest.call("add", 1, 2)

    assert guest.turn(10 * EPOCH_S, computes_between_two_calls) == 3
    with pytest.raises(GuestTrapped) as caught:
        guest.turn(4 * EPOCH_S, computes_between_two_calls)
    assert caught.value.interrupted


def test_a_turn_is_never_ended_before_its_time(guest: ModuleGuest) -> None:
    for limit_s in (0.001, 0.014, 0.0149, 0.02):
        spent_ns = guest.cpu_ns
        with pytest.raises(GuestTrapped):
            guest.turn(limit_s, guest.call, "spin")
        assert guest.cpu_ns - spent_ns >= limit_s * 1e9


def test_a_turn_that_never_ends_is_ended_and_counted(guest: ModuleGuest) -> None:
    with pytest.raises(GuestTrapped) as caught:
        guest.turn(2 * EPOCH_S, guest.call, "spin")
    assert caught.value.interrupted
    assert guest.cpu_ns >= 2 * EPOCH_S * 1e9


def test_a_trap_and_an_error_of_the_host_end_the_turn(
    engine: WasmEngine, guest: ModuleGuest
) -> None:
    with pytest.raises(GuestTrapped, match="unreachable") as caught:
        guest.turn(1.0, guest.call, "fall")
    assert not caught.value.interrupted
    assert engine.current is None

    def refuses() -> None:
        raise InvalidArgument("what it asked for")

    with pytest.raises(InvalidArgument):
        guest.turn(1.0, refuses)
    assert engine.current is None


def test_initialisers_run_once_and_see_the_memory(guest: ModuleGuest) -> None:
    guest.turn(1.0, guest.call, "add", 1, 2)
    drawn = bytes(guest.memory()[16:80])
    assert drawn != bytes(64)
    guest.turn(1.0, guest.call, "add", 1, 2)
    assert bytes(guest.memory()[16:80]) == drawn


def test_the_memory_is_seen_as_the_last_call_left_it(guest: ModuleGuest) -> None:
    guest.turn(1.0, guest.call, "add", 1, 2)
    guest.memory()[100:103] = b"abc"
    assert guest.turn(1.0, guest.call, "grow", 2) == 1
    assert len(guest.memory()) == 3 << 16
    assert bytes(guest.memory()[100:103]) == b"abc"
    assert guest.turn(1.0, guest.call, "grow", 100) == 0xFFFFFFFF, "beyond what it may have"
    assert len(guest.memory()) == 3 << 16


def test_one_that_was_never_called_is_closed(template: ModuleTemplate) -> None:
    template.new_guest(1 << 20).close()
    other = template.new_guest(1 << 20)
    assert other.turn(1.0, other.call, "add", 1, 2) == 3
    other.close()
