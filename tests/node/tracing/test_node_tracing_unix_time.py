"""Event time as Unix time stays where it is until the clock is set."""

from __future__ import annotations

from quire.node.tracing.unix_time import UnixTime


class TwoClocks:
    def __init__(self) -> None:
        self.monotonic_s, self.set_s = 5.0, 1000.0

    def now_s(self) -> float:
        return self.monotonic_s

    def unix_s(self) -> float:
        return self.monotonic_s + self.set_s


def test_the_offset_holds_against_jitter_and_follows_a_clock_that_is_set() -> None:
    clocks = TwoClocks()
    time = UnixTime(clocks)
    clocks.set_s += 0.002
    clocks.monotonic_s = 6.0
    assert (time.offset_s(), time.now_s()) == (1000.0, 1006.0)
    clocks.set_s = 900.0
    assert (time.offset_s(), time.now_s()) == (900.0, 906.0)
