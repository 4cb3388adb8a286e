"""What compiled guests have of WASI: each function checks the guest's addresses."""

from __future__ import annotations

import struct
import time

import pytest

from quire.programs.sandbox.module.wasi import FAULT, INVALID, OK, WASI_FUNCTIONS


def call(name: str, memory: bytearray, *arguments: int) -> int:
    return WASI_FUNCTIONS[name](memoryview(memory), lambda level, text: None, *arguments)


@pytest.mark.parametrize(
    ("clock", "clock_ns"), [(0, time.time_ns), (1, time.monotonic_ns)], ids=["real", "monotonic"]
)
def test_clocks_have_the_numbers_of_wasi(clock: int, clock_ns: object) -> None:
    assert callable(clock_ns)
    memory = bytearray(16)
    before = clock_ns()
    assert call("clock_time_get", memory, clock, 1, 8) == OK
    assert before <= struct.unpack_from("<Q", memory, 8)[0] <= clock_ns()


def test_other_clocks_and_places_outside_the_memory_are_refused() -> None:
    memory = bytearray(16)
    assert call("clock_time_get", memory, 2, 1, 8) == INVALID
    assert call("clock_time_get", memory, 0, 1, 9) == FAULT
    assert call("random_get", memory, 0, 17) == FAULT
    assert memory == bytearray(16)
