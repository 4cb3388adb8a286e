"""What families have computed: kept while they live, and for a while behind that."""

from __future__ import annotations

from quire.programs.sandbox.host.family_cpu import FamilyCpus


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
