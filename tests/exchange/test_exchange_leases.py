"""Which leases a transport takes tokens for, and which are still to come."""

from __future__ import annotations

from quire.exchange.leases import Leases
from quire.testing.conformance.kv_transport import KEY, TokenSink


def test_a_lease_is_to_come_until_it_or_a_later_one_was_accepted() -> None:
    leases = Leases()
    assert leases.is_to_come(1)
    leases.accept(5, KEY, TokenSink(1))
    assert [leases.is_to_come(number) for number in (4, 5, 6)] == [False, False, True]
    leases.accept(3, KEY, TokenSink(1))
    leases.refuse(5)
    assert [leases.is_to_come(number) for number in (4, 5, 6)] == [False, False, True]


def test_nothing_is_to_come_behind_the_end() -> None:
    leases = Leases()
    leases.end()
    assert not leases.is_to_come(1 << 60)


def test_who_watches_is_told_of_each_lease_and_of_the_end() -> None:
    leases, heard = Leases(), []
    unwatch = leases.watch(lambda: heard.append(leases.is_to_come(2)))
    leases.accept(1, KEY, TokenSink(1))
    leases.accept(2, KEY, TokenSink(1))
    leases.end()
    assert heard == [True, False, False]
    unwatch()
    unwatch()
    leases.accept(3, KEY, TokenSink(1))
    assert len(heard) == 3
