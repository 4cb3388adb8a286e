"""The time that a program has read is told it again when it begins again."""

from __future__ import annotations

import pytest
from replay_node import recorded

from quire.programs.api import Api
from quire.programs.runtime import recorded_clock
from quire.programs.runtime.recorded_clock import RecordedClock
from quire.programs.runtime.replay_log import ReplayLog
from quire.simulation import VirtualClock
from quire.testing import LocalNode
from quire.testing.local_clock import EPOCH_S, LocalClock


async def reads(api: Api) -> list[float]:
    return [api.now(), api.monotonic()]


async def test_a_program_that_begins_again_reads_what_it_has_read() -> None:
    log = ReplayLog()
    for start_s in (3.0, 10.0):
        async with LocalNode(clock=VirtualClock(start_s)) as node:
            assert await node.run(reads) == [EPOCH_S + start_s, start_s]
            read = await node.run(reads, connect=recorded(node, log))
            assert read == [EPOCH_S + 3.0, 3.0]


def test_readings_behind_those_that_are_kept_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_clock, "MAX_READINGS", 2)
    virtual, kept = VirtualClock(), list[float]()
    for first in (0.0, 10.0):
        clock = RecordedClock(LocalClock(virtual), kept)
        read = [clock.now_s() for _ in range(3)]
        assert read == [0.0, 0.0, first]
        assert clock.unix_s() == EPOCH_S + first
        virtual.advance(10.0)


def test_what_is_read_when_it_is_over_is_not_recorded() -> None:
    virtual, kept = VirtualClock(), list[float]()
    clock = RecordedClock(LocalClock(virtual), kept)
    clock.now_s()
    clock.end()
    virtual.advance(5.0)
    assert clock.now_s() == 5.0
    assert kept == [0.0]
