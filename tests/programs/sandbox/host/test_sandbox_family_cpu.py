"""What families have computed: kept while they live, and for a while behind that."""

from __future__ import annotations

from typing import Any

import pytest

from quire.programs.sandbox.host.family_cpu import FamilyCpus
from quire.programs.sandbox.host.hosted import Guest
from quire.programs.sandbox.limits import GuestLimits


def test_one_that_lives_is_never_forgotten() -> None:
    cpus = FamilyCpus(num_idle=1)
    living = cpus.enter(1, 1000)
    living.spent_ns = 400_000_000
    for number in range(2, 9):
        cpus.enter(number, 1000)
        cpus.leave(number)
    assert len(cpus) == 2
    assert cpus.enter(1, 1000) is living
    assert living.left_ms == 600


def test_one_without_guests_is_found_again_and_the_oldest_goes_first() -> None:
    cpus = FamilyCpus(num_idle=2)
    for number in (1, 2):
        cpus.enter(number, 1000).spent_ns = number
        cpus.leave(number)
    again = cpus.enter(1, 1000)
    assert again.spent_ns == 1
    cpus.leave(1)
    cpus.enter(3, 1000)
    cpus.leave(3)
    assert cpus.enter(2, 1000).spent_ns == 0, "it was forgotten"
    assert cpus.enter(1, 1000).spent_ns == 1


class Spent:
    """A runner that has computed for ``cpu_ns``."""

    def __init__(self, cpu_ns: int) -> None:
        self.cpu_ns = cpu_ns


@pytest.mark.parametrize(
    ("spent_ns", "left_ms", "turn_s"),
    [(0, 1000, 0.3), (900_000_000, 100, 0.1), (1_500_000_000, -500, 0.0)],
)
def test_a_turn_is_no_longer_than_what_is_left(
    spent_ns: int, left_ms: float, turn_s: float
) -> None:
    limits = GuestLimits(turn_ms=300, cpu_ms=1000)
    never: Any = None
    guest = Guest(1, "guest", never, limits, never, 0.0)
    assert guest.own_left_ms == 1000, "it has not begun"
    runner: Any = Spent(spent_ns)
    guest.runner = runner
    assert (guest.own_left_ms, guest.turn_s) == (left_ms, turn_s)
