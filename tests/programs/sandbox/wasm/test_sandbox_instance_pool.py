"""Places for compiled guests: nobody sees what was there before, and nobody needs one to begin."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire.programs.sandbox.module.wasm_module import ModuleGuest, ModuleTemplate, compile_module
from quire.programs.sandbox.wasm.engine import EPOCH_S, GuestTrapped, WasmEngine, load_wasmtime
from quire.programs.sandbox.wasm.instance_pool import can_reserve, find_pool

wasmtime = pytest.importorskip("wasmtime")

PAGE = 1 << 16
MIB = 1 << 20
LEFT = 0xAA
"""What a guest leaves wherever it can."""
GROWN_PAGES = 100

FILLED = """
(module
  (memory (export "memory") 4)
  (data (i32.const 100) "what it begins with")
  (data (i32.const 200000) "and behind what a place keeps")
  (global $number (mut i32) (i32.const 7))
  (table $table 8 16 funcref)
  (elem (i32.const 0) $number_of)
  (elem declare func $number_of)
  (func $number_of (export "number") (result i32) (global.get $number))
  (func (export "fill") (param $from i32) (param $length i32) (result i32)
    (memory.fill (local.get $from) (i32.const 0xAA) (local.get $length))
    (global.set $number (i32.const 99))
    (table.fill $table (i32.const 0) (ref.func $number_of) (table.size $table))
    (drop (table.grow $table (ref.func $number_of) (i32.const 4)))
    (i32.const 1))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "elements") (result i32) (table.size $table))
  (func (export "is_null") (param i32) (result i32)
    (ref.is_null (table.get $table (local.get 0))))
  (func (export "fall") (result i32) (unreachable))
  (func (export "spin") (result i32) (loop $again (br $again)) (i32.const 0)))
"""
OTHER = """
(module
  (memory (export "memory") 2)
  (data (i32.const 64) "another module")
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "number") (result i32) (i32.const 3)))
"""

Load = Callable[[WasmEngine, str], ModuleTemplate]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(engine: WasmEngine, text: str) -> ModuleTemplate:
        compiled = tmp_path / f"{abs(hash(text))}.cwasm"
        compiled.write_bytes(compile_module(wasmtime.wat2wasm(text)))
        return ModuleTemplate(engine, compiled, {"number": 0})

    return loaded


@pytest.fixture
def engine() -> Iterator[WasmEngine]:
    """With a single place, so that every guest is in that of the one before it."""
    made = WasmEngine(num_places=1)
    yield made
    made.close()


@pytest.fixture
def unpooled() -> Iterator[WasmEngine]:
    made = WasmEngine(num_places=0)
    yield made
    made.close()


def num_free(engine: WasmEngine) -> int:
    assert engine.pool is not None, "this system has no room for a pool"
    return engine.pool.num_free


def call(guest: ModuleGuest, name: str, *arguments: int) -> int:
    return guest.turn(10.0, guest.call, name, *arguments)


def place_of(guest: ModuleGuest) -> int:
    return guest._instance.memory_base()


def fill_all(guest: ModuleGuest) -> None:
    call(guest, "number")  # its memory is there
    call(guest, "fill", 0, len(guest.memory()))


def fill_the_beginning(guest: ModuleGuest) -> None:
    call(guest, "fill", 0, 4096)


def fill_here_and_there(guest: ModuleGuest) -> None:
    for address in (90, 4096, 3 * 4096 + 5, PAGE - 1, 2 * PAGE, 199_990, 4 * PAGE - 32):
        call(guest, "fill", address, 32)


def fill_what_has_grown(guest: ModuleGuest) -> None:
    assert call(guest, "grow", GROWN_PAGES) == 4
    call(guest, "fill", 0, len(guest.memory()))


def fill_and_fall(guest: ModuleGuest) -> None:
    fill_what_has_grown(guest)
    with pytest.raises(GuestTrapped, match="unreachable"):
        call(guest, "fall")


def fill_and_be_ended(guest: ModuleGuest) -> None:
    fill_what_has_grown(guest)
    with pytest.raises(GuestTrapped) as caught:
        guest.turn(EPOCH_S, guest.call, "spin")
    assert caught.value.interrupted


@pytest.mark.parametrize(
    "fill",
    [
        fill_all, fill_the_beginning, fill_here_and_there, fill_what_has_grown, fill_and_fall,
        fill_and_be_ended,
    ],
)  # fmt: skip
def test_nothing_of_a_guest_is_seen_by_the_next_in_its_place(
    engine: WasmEngine, unpooled: WasmEngine, load: Load, fill: Callable[[ModuleGuest], None]
) -> None:
    fresh = load(unpooled, FILLED).new_guest(64 * MIB)
    assert call(fresh, "number") == 7
    begins_with = bytes(fresh.memory())
    fresh.close()
    assert b"what it begins with" in begins_with
    template = load(engine, FILLED)
    places = set()
    for _ in range(3):
        guest = template.new_guest(64 * MIB)
        assert num_free(engine) == 0
        assert call(guest, "number") == 7
        places.add(place_of(guest))
        assert bytes(guest.memory()) == begins_with
        assert [call(guest, "is_null", index) for index in range(8)] == [0] + 7 * [1]
        assert call(guest, "elements") == 8
        assert call(guest, "grow", GROWN_PAGES) == 4
        assert bytes(guest.memory()[len(begins_with) :]) == bytes(GROWN_PAGES * PAGE)
        guest.close()
        author = template.new_guest(64 * MIB)
        fill(author)
        places.add(place_of(author))
        assert bytes(author.memory()[90:92]) == bytes([LEFT, LEFT])
        author.close()
    assert len(places) == 1, "they were in the same place, one after the other"


def test_nothing_of_a_guest_is_seen_by_one_of_another_module(
    engine: WasmEngine, load: Load
) -> None:
    """Three modules in turn, in the two memories that one place has: each comes behind another."""
    author_of, other = load(engine, FILLED), load(engine, OTHER)
    third = load(engine, OTHER.replace("another module", "a third module"))
    filled, seen_in = set(), set()
    for _ in range(4):
        author = author_of.new_guest(64 * MIB)
        fill_what_has_grown(author)
        filled.add(place_of(author))
        author.close()
        for template, text in ((other, b"another module"), (third, b"a third module")):
            guest = template.new_guest(64 * MIB)
            assert call(guest, "number") == 3
            seen_in.add(place_of(guest))
            assert call(guest, "grow", GROWN_PAGES) == 2
            seen = bytearray(guest.memory())
            assert bytes(seen[64:78]) == text
            seen[64:78] = bytes(14)
            assert not any(seen)
            guest.memory()[:] = bytes([LEFT]) * len(seen)
            guest.close()
    assert filled == seen_in
    assert len(filled) == 2


def test_the_memory_of_one_that_has_ended_cannot_be_looked_at(
    engine: WasmEngine, load: Load
) -> None:
    guest = load(engine, FILLED).new_guest(MIB)
    call(guest, "number")
    memory = guest.memory()
    guest.close()
    for view in (memory, guest.memory()):
        with pytest.raises(ValueError, match="released"):
            bytes(view)


def test_a_place_gives_no_more_memory_than_the_guest_may_have(
    engine: WasmEngine, load: Load
) -> None:
    template = load(engine, FILLED)
    large = template.new_guest(64 * MIB)
    assert call(large, "grow", GROWN_PAGES) == 4
    large.close()
    small = template.new_guest(MIB)
    call(small, "number")
    place = place_of(small)
    assert call(small, "grow", 13) == 0xFFFFFFFF
    assert call(small, "grow", 12) == 4
    with pytest.raises(GuestTrapped, match="out of bounds"):
        call(small, "fill", 16 * PAGE, 1)
    small.close()
    tiny = template.new_guest(3 * PAGE)
    with pytest.raises(GuestTrapped, match="minimum size"):
        call(tiny, "number")
    tiny.close()
    again = template.new_guest(MIB)
    assert call(again, "number") == 7
    assert place_of(again) == place
    again.close()


def test_a_guest_that_finds_no_place_begins_all_the_same(engine: WasmEngine, load: Load) -> None:
    template = load(engine, FILLED)
    first = template.new_guest(MIB)
    assert num_free(engine) == 0
    second = template.new_guest(MIB)
    assert (call(first, "number"), call(second, "number")) == (7, 7)
    fill_all(first)
    assert bytes(second.memory()[:90]) == bytes(90)
    second.close()
    assert num_free(engine) == 0, "it had none"
    first.close()
    first.close()
    assert num_free(engine) == 1, "a place is given back once"
    third = template.new_guest(MIB)
    assert num_free(engine) == 0
    third.close()
    dropped = template.new_guest(MIB)
    call(dropped, "number")
    del dropped
    gc.collect()
    assert num_free(engine) == 1


def test_what_ended_guests_had_goes_back_to_the_system(engine: WasmEngine, load: Load) -> None:
    template = load(engine, FILLED)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here")
    template.new_guest(MIB).close()
    before = resident_bytes()
    guest = template.new_guest(128 * MIB)
    assert call(guest, "grow", 1000) == 4
    fill_all(guest)
    assert resident_bytes() - before > 60 * MIB
    guest.close()
    assert resident_bytes() - before < 8 * MIB


def test_places_are_cleaned_whatever_the_kernel_says_of_their_pages(
    engine: WasmEngine, load: Load
) -> None:
    """The runtime can ask the kernel which pages were written, to clean those alone; pages that are
    swapped out were missed by that. It is off unless somebody asks for it."""
    guest = load(engine, FILLED).new_guest(MIB)
    call(guest, "number")
    guest.close()
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("no /proc here")
    opened = [os.readlink(one) for one in descriptors.iterdir() if one.is_symlink()]
    assert not [name for name in opened if name.endswith("/pagemap")]


def test_a_module_that_fits_no_place_is_run_without(
    engine: WasmEngine, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """Its globals alone are more than what a place has for an instance."""
    many = "(global (mut i32) (i32.const 5))" * 70_000
    text = f"""(module (memory (export "memory") 1) {many}
      (func (export "number") (result i32) (global.get 69999)))"""
    with caplog.at_level(logging.INFO, "quire"):
        template = load(engine, text)
    assert not template.fits_pool
    assert "does not fit into the pool" in caplog.text
    guest = template.new_guest(MIB)
    assert num_free(engine) == 1
    assert call(guest, "number") == 5
    guest.close()


def test_machine_code_for_other_settings_is_not_taken(
    engine: WasmEngine, load: Load, tmp_path: Path
) -> None:
    assert load(engine, FILLED).fits_pool, "one compilation serves both engines"
    others: list[Callable[[object], None]] = [
        lambda config: None,  # no interruption
        lambda config: _set(config, "memory_reservation", 1 << 20),
        lambda config: _set(config, "memory_guard_size", 1 << 16),
    ]
    for change in others:
        config = wasmtime.Config()
        config.epoch_interruption = change is not others[0]
        change(config)
        other = wasmtime.Module(wasmtime.Engine(config), wasmtime.wat2wasm(FILLED))
        compiled = tmp_path / "other.cwasm"
        compiled.write_bytes(other.serialize())
        assert engine.pool is not None
        for raw in (engine.raw, engine.pool.engine):
            with pytest.raises(wasmtime.WasmtimeError):
                wasmtime.Module.deserialize_file(raw, str(compiled))


def _set(config: object, name: str, value: int) -> None:
    getattr(wasmtime._bindings, f"_wasmtime_config_{name}_set")(config.ptr(), value)  # type: ignore[attr-defined]


def test_more_addresses_than_there_are_cannot_be_reserved() -> None:
    assert can_reserve(1 << 20)
    assert not can_reserve(1 << 62)
    assert not can_reserve(1 << 80)


def test_a_release_without_a_pool_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(
        wasmtime._bindings, "_wasmtime_pooling_allocation_config_linear_memory_keep_resident_set"
    )
    assert find_pool(load_wasmtime(), wasmtime.Config(), 1) is None
    assert "release of wasmtime offers none" in caplog.text


IN_LITTLE_ROOM = """
import logging, resource, sys
from pathlib import Path
from quire.programs.sandbox.wasm.engine import WasmEngine
from quire.programs.sandbox.module.wasm_module import ModuleTemplate
logging.basicConfig(stream=sys.stdout, format="%(message)s")
resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
engine = WasmEngine()
guest = ModuleTemplate(engine, Path(sys.argv[1]), {"number": 0}).new_guest(1 << 20)
print("pool:", engine.pool, "number:", guest.turn(10.0, guest.call, "number"))
guest.close()
engine.close()
"""


def test_a_process_with_few_addresses_runs_guests_without_a_pool(
    engine: WasmEngine, load: Load, tmp_path: Path
) -> None:
    load(engine, FILLED)
    (compiled,) = tmp_path.glob("*.cwasm")
    ran = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_ROOM, str(compiled)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    warning, result = ran.stdout.splitlines()
    assert "cannot reserve" in warning
    assert "ulimit -v" in warning
    assert result == "pool: None number: 7"
