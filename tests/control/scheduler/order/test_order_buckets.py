"""Buckets against Algorithm 2 of Ayo as it is printed, and what they add to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from quire.control.scheduler.order.buckets import MAX_PASSED, Buckets, in_rounds


@dataclass(frozen=True)
class Request:
    """``number`` is the order of arrival."""

    query: int
    depth: int
    number: int
    priority: int = 0

    @property
    def standing(self) -> tuple[tuple[float, ...], float, int]:
        return (-self.priority, self.number), -self.depth, self.query


def algorithm_2(waiting: Sequence[Request], max_size: int) -> list[Request]:
    """The batch, with the rounds that fill what is left of it."""
    queries: dict[int, list[Request]] = {}
    for one in waiting:
        queries.setdefault(one.query, []).append(one)
    buckets = sorted(queries.values(), key=lambda bucket: min(one.number for one in bucket))
    batch: list[Request] = []
    while len(batch) < max_size and any(buckets):
        for bucket in filter(None, buckets):
            deepest = max(one.depth for one in bucket)
            candidates = sorted(
                (one for one in bucket if one.depth == deepest), key=lambda one: one.number
            )
            for one in candidates[: max_size - len(batch)]:
                bucket.remove(one)
                batch.append(one)
    return batch


def filled(requests: Sequence[Request]) -> Buckets[Request]:
    buckets: Buckets[Request] = Buckets()
    for one in requests:
        buckets.add(one, *one.standing)
    return buckets


def batch_of(buckets: Buckets[Request], max_size: int) -> list[Request]:
    buckets.begin()
    batch: list[Request] = []
    while len(batch) < max_size and (one := buckets.first()) is not None:
        buckets.take(*one.standing)
        buckets.check_invariants()
        batch.append(one)
    return batch


shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=12)


@given(st.lists(st.tuples(shapes, st.integers(1, 6)), max_size=6))
def test_every_batch_is_that_of_the_algorithm(
    periods: list[tuple[list[tuple[int, int]], int]],
) -> None:
    """Requests come between the batches, and others are withdrawn."""
    buckets: Buckets[Request] = Buckets()
    waiting: list[Request] = []
    number = 0
    for arrivals, max_size in periods:
        for query, depth in arrivals:
            number += 1
            waiting.append(Request(query, depth, number))
            buckets.add(waiting[-1], *waiting[-1].standing)
        if number % 3 == 0 and waiting:
            buckets.remove(*waiting.pop(len(waiting) // 2).standing)
        batch = algorithm_2(waiting, max_size)
        assert batch_of(buckets, max_size) == batch
        waiting = [one for one in waiting if one not in batch]
        assert len(buckets) == len(waiting)


@given(shapes)
def test_those_of_one_message_have_the_same_order(arrivals: list[tuple[int, int]]) -> None:
    requests = [Request(query, depth, n) for n, (query, depth) in enumerate(arrivals)]
    order = in_rounds([one.standing for one in requests])
    in_order = sorted(requests, key=lambda one: order[one.standing[0]])
    assert in_order == algorithm_2(requests, len(requests))


def test_a_higher_priority_goes_before_every_bucket() -> None:
    early, urgent = Request(1, 9, 1), Request(1, 0, 2, priority=1)
    buckets = filled([early, Request(2, 9, 0), urgent])
    assert batch_of(buckets, 2)[0] is urgent


def test_what_comes_while_a_message_is_made_joins_its_bucket() -> None:
    buckets = filled([Request(1, 1, 1), Request(1, 0, 2), Request(2, 0, 3)])
    first = buckets.first()
    assert first is not None
    buckets.take(*first.standing)
    buckets.add(late := Request(2, 5, 4), *late.standing)
    assert [one.number for one in batch_of(buckets, 9)] == [2, 4, 3]


def test_a_request_that_is_passed_for_long_goes_first() -> None:
    """Else its program would have the first place in every message for ever."""
    old, other = Request(1, 0, 0), Request(2, 0, 1)
    buckets = filled([old, other])
    taken: list[Request] = []
    for number in range(2, 2 + MAX_PASSED + 3):
        new = Request(1, 5, number)
        buckets.add(new, *new.standing)
        taken += batch_of(buckets, 1)
    assert taken.index(old) == MAX_PASSED
    assert taken.index(other) == MAX_PASSED + 1, "its bucket has no better place any more"
