"""A real Python guest, called as its host calls it: what its image and its compiled code give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.host.templates import CompiledSources
from quire.programs.sandbox.python.component import python_component
from quire.programs.sandbox.python.guest.rehearsal import LAUNCH
from quire.programs.sandbox.python.runner import PythonRunner
from quire.programs.sandbox.wasm import engine
from quire.programs.sandbox.wasm.build_processes import BuildProcesses
from quire.programs.sandbox.wasm.cache import BuildCache
from quire.programs.sandbox.wasm.compiler import Compiler
from quire.programs.sandbox.wasm.engine import PythonGuest, PythonTemplate, WasmEngine

MEMORY_BYTES = 64 << 20
HEAD = """
from quire.programs.sdk import inferlet

@inferlet("probe")
async def main(api):
"""


@pytest.fixture(scope="module")
def template(sandbox_cache: Path) -> Iterator[PythonTemplate]:
    cache, processes = BuildCache(sandbox_cache), BuildProcesses()
    compiler = Compiler(cache, processes=processes)
    compiled = python_component(cache, compiler, processes, lambda stage, fraction: None)
    compiler.close()
    engine = WasmEngine()
    yield PythonTemplate(engine, compiled)
    engine.close()


Make = Callable[[], PythonGuest]


@pytest.fixture
def make(template: PythonTemplate) -> Iterator[Make]:
    made: list[PythonGuest] = []

    def guest() -> PythonGuest:
        made.append(template.instantiate(MEMORY_BYTES))
        return made[-1]

    yield guest
    for one in made:
        one.close()


def launch(seed: int = 1) -> m.GuestLaunch:
    given = msgspec.json.decode(LAUNCH, type=m.GuestLaunch)
    return msgspec.structs.replace(given, args=(), seed=seed)


def ended(guest: PythonGuest, source: str, compiled: str = "", seed: int = 1) -> m.Ended:
    """How a program ends that awaits nothing."""
    runner = PythonRunner(guest, source, compiled, turn_bytes=1 << 20)
    runner.attach(Answers({}, lambda level, text, fields: None))
    last = runner.begin(launch(seed), 10.0).calls[-1]
    assert isinstance(last, m.Ended)
    return last


def result(guest: PythonGuest, source: str, compiled: str = "", seed: int = 1) -> Any:
    last = ended(guest, source, compiled, seed)
    assert last.error is None, last.error
    return msgspec.json.decode(last.result_json)


def test_what_the_image_holds_is_immortal_and_what_a_program_makes_is_not(make: Make) -> None:
    source = f"""
import json, sys
from quire.programs.sdk import Context
from quire.programs.library import LIBRARY
{HEAD}
    old = [Context, Context.fill, Context.fill.__code__, Context.fill.__code__.co_consts,
           Context.__dict__["fill"], LIBRARY, json.loads, json.decoder.__doc__, vars(json),
           str.__dict__["join"], next(iter(LIBRARY))]
    return [[sys._is_immortal(one) for one in old], sys._is_immortal([]), sys._is_immortal(main)]
"""
    old, new_list, new_function = result(make(), source)
    assert all(old), old
    assert not new_list
    assert not new_function


def test_new_objects_lie_together_behind_the_image(make: Make) -> None:
    """Else each of them costs a page of memory: gaps between the image's objects are small."""
    source = f"""
{HEAD}
    made = [object() for _ in range(2000)] + [[one] for one in range(2000)]
    return len({{id(one) >> 12 for one in made}})
"""
    num_pages = result(make(), source)
    assert num_pages < 4000 * 96 / 4096 + 16


def test_a_collection_does_not_look_at_the_image(make: Make) -> None:
    source = f"""
import gc
{HEAD}
    ring = []
    ring.append(ring)
    del ring
    return [gc.collect(), gc.get_freeze_count() > 10_000]
"""
    assert result(make(), source) == [1, True]


def test_the_host_sees_how_much_memory_a_guest_has(make: Make) -> None:
    guest = make()
    before = guest.memory_bytes()
    assert before is not None
    assert result(guest, f"{HEAD}    return len(bytearray(20 << 20))\n") == 20 << 20
    after = guest.memory_bytes()
    assert after is not None
    assert before + (20 << 20) <= after <= MEMORY_BYTES


def test_the_memory_of_a_guest_that_a_trap_has_ended_is_unknown(make: Make) -> None:
    guest = make()
    runner = PythonRunner(guest, f"{HEAD}    while True: pass\n", "", turn_bytes=1 << 20)
    runner.attach(Answers({}, lambda level, text, fields: None))
    with pytest.raises(engine.GuestTrapped):
        runner.begin(launch(), 0.1)
    assert runner.memory_bytes is None


def test_a_launch_asks_for_no_random_bytes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def urandom(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr(engine.os, "urandom", urandom)
    source = f"import os, random\n{HEAD}    return random.random()\n"
    assert result(make(), source) == result(make(), source)
    assert asked == []
    assert result(make(), f"import os\n{HEAD}    return os.urandom(3).hex()\n") == "000000"
    assert asked == [3]


def test_random_numbers_are_those_of_the_programs_seed(make: Make) -> None:
    source = f"import random\n{HEAD}    return random.random()\n"
    one, same, other = (result(make(), source, seed=seed) for seed in (5, 5, 6))
    assert one == same != other
    fresh = f"import random\n{HEAD}    random.seed()\n    return random.random()\n"
    assert result(make(), fresh) != result(make(), fresh), "the program may seed as it likes"


def test_a_compiled_program_is_the_same_program(make: Make) -> None:
    source = f'''
"""Its documentation."""
{HEAD}
    return [__doc__, main.__doc__ if hasattr(main, "__doc__") else None, [n * n for n in range(3)]]
'''
    compiled = make().compile(source, 10.0)
    assert compiled
    assert result(make(), source, compiled) == result(make(), source)


def test_errors_of_a_compiled_program_show_its_source(make: Make) -> None:
    source = f"{HEAD}    return 1 / len('')  # nothing\n"
    compiled = make().compile(source, 10.0)
    error = ended(make(), source, compiled).error
    assert error is not None
    assert error == ended(make(), source).error
    assert "return 1 / len('')  # nothing" in str(error.details["traceback"])


def test_a_programs_annotations_are_values_as_they_are_natively(make: Make) -> None:
    source = f"""
def double(number: int) -> float: ...
{HEAD}
    return [hint.__name__ for hint in double.__annotations__.values()]
"""
    assert result(make(), source) == ["int", "float"]
    assert result(make(), source, make().compile(source, 10.0)) == ["int", "float"]


def test_what_does_not_compile_is_compiled_to_nothing_and_runs_nowhere(make: Make) -> None:
    guest = make()
    assert guest.compile("def broken(:\n", 10.0) == ""
    assert guest.compile("raise SystemExit", 10.0) != "", "it was not run"
    error = ended(make(), "def broken(:\n").error
    assert error is not None
    assert "SyntaxError" in error.message


def test_compiled_sources_are_kept_up_to_a_size() -> None:
    kept = CompiledSources(max_chars=29)
    kept.put("a", "x" * 9)
    kept.put("b", "y" * 9)
    assert kept.get("a") == "x" * 9
    kept.put("c", "z" * 9)
    assert [digest in kept for digest in "abc"] == [True, False, True]
    kept.put("c2", "z" * 19)
    assert [digest in kept for digest in ("a", "b", "c", "c2")] == [False, False, False, True]
    assert kept.get("b") == ""
    kept.put("d", "w" * 100)
    assert [digest in kept for digest in ("c2", "d")] == [False, True]
