"""When the memory of ended guests goes back to the system."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest

from quire.programs.sandbox.host.freed_memory import (
    MOST_RESTS,
    REST_S,
    WORTH_GUESTS,
    FreedMemory,
    find_trim,
)


class Timers:
    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        assert delay == REST_S
        self.waiting.append(callback)

    def pass_time(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Trims:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def trims() -> Trims:
    return Trims()


def end(memory: FreedMemory, count: int) -> None:
    for _ in range(count):
        memory.guest_ended()


def test_a_wave_is_given_back_once_it_is_over(timers: Timers, trims: Trims) -> None:
    memory = FreedMemory(timers, trims)
    end(memory, WORTH_GUESTS)
    timers.pass_time()
    assert trims.count == 1
    timers.pass_time()
    assert trims.count == 1
    end(memory, WORTH_GUESTS)
    timers.pass_time()
    assert trims.count == 2


def test_a_few_guests_are_not_worth_it(timers: Timers, trims: Trims) -> None:
    memory = FreedMemory(timers, trims)
    end(memory, WORTH_GUESTS - 1)
    assert not timers.waiting
    end(memory, 1)
    assert len(timers.waiting) == 1


def test_a_wave_that_goes_on_is_waited_for_but_not_for_ever(timers: Timers, trims: Trims) -> None:
    memory = FreedMemory(timers, trims)
    end(memory, WORTH_GUESTS)
    for _ in range(MOST_RESTS - 1):
        end(memory, 1)
        timers.pass_time()
        assert trims.count == 0
    end(memory, 1)
    timers.pass_time()
    assert trims.count == 1
    assert not timers.waiting


def test_guests_that_begin_are_not_kept_waiting(timers: Timers, trims: Trims) -> None:
    memory = FreedMemory(timers, trims)
    end(memory, WORTH_GUESTS)
    memory.guest_began()
    timers.pass_time()
    assert trims.count == 0
    timers.pass_time()
    assert trims.count == 1


def test_another_allocator_is_left_alone(timers: Timers) -> None:
    end(FreedMemory(timers, None), 10 * WORTH_GUESTS)
    assert not timers.waiting


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_glibcs_allocator_gives_back() -> None:
    trim = find_trim()
    assert trim is not None
    assert trim() in (0, 1)
