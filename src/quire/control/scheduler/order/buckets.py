"""Items that wait under a policy with stages, in buckets: one for each program (Ayo's Algorithm 2).

Owns the order within one tenant, and which bucket is next within one message. A message takes from
each bucket the items of the bucket's first stage, buckets by the rank of their oldest item when the
message was begun. While there is room, it then takes each bucket's next stage, and so on. An item
costs the logarithm of those that wait (and moving references), a message what it takes. Does not
know what an item is.

The oldest item gives its bucket its place, even while others of the bucket go before it. So that an
item of a late stage cannot give its program all messages for ever, it goes first once
``MAX_PASSED`` messages have passed it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Generic, TypeVar

MAX_PASSED = 64

T = TypeVar("T")

Rank = tuple[float, ...]
"""Priority (the higher, the smaller), the policy's key, a unique number."""

BucketKey = tuple[float, int]
"""Priority as in a rank, program."""

_Place = tuple[float, int, Rank, int]
"""Priority, round, rank of the oldest, program."""


class _Bucket(Generic[T]):
    """The items of one program. ``round``: how many of its stages this message has taken;
    ``standing``: the rank of the oldest item before the message took the first. ``num_passed``:
    messages that took something of it while ``passed`` was its oldest."""

    __slots__ = ("items", "num_passed", "passed", "place", "ranks", "round", "stages", "standing")

    def __init__(self) -> None:
        self.items: dict[Rank, T] = {}
        self.ranks: list[Rank] = []
        self.stages: list[tuple[float, Rank]] = []
        self.round = 0
        self.standing: Rank | None = None
        self.num_passed = 0
        self.passed: Rank | None = None
        self.place: _Place | None = None

    def first(self) -> T:
        if self.num_passed >= MAX_PASSED and self.ranks[0] == self.passed:
            return self.items[self.ranks[0]]
        return self.items[self.stages[0][1]]

    def begin(self) -> None:
        """Begin the next message after one that has taken something from this bucket."""
        self.round = 0
        self.standing = None
        oldest = self.ranks[0]
        if oldest == self.passed:
            self.num_passed += 1
        else:
            self.passed, self.num_passed = oldest, 1


class Buckets(Generic[T]):
    """The buckets of one tenant. ``begin`` starts a message; ``take`` takes an item for it,
    ``remove`` takes out an item that ends or goes elsewhere."""

    def __init__(self) -> None:
        self._buckets: dict[BucketKey, _Bucket[T]] = {}
        self._places: list[_Place] = []
        self._touched: dict[BucketKey, None] = {}
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    def add(self, item: T, rank: Rank, stage: float, program: int) -> None:
        key = (rank[0], program)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket()
        assert rank not in bucket.items, "two items have one rank"
        bucket.items[rank] = item
        insort(bucket.ranks, rank)
        insort(bucket.stages, (stage, rank))
        self._num_items += 1
        self._replace(key, bucket)

    def remove(self, rank: Rank, stage: float, program: int) -> None:
        key = (rank[0], program)
        bucket = self._buckets[key]
        del bucket.items[rank]
        del bucket.ranks[bisect_left(bucket.ranks, rank)]
        del bucket.stages[bisect_left(bucket.stages, (stage, rank))]
        self._num_items -= 1
        self._replace(key, bucket)

    def take(self, rank: Rank, stage: float, program: int) -> None:
        """Take an item for this message. With the last of its stage the bucket waits for the next
        round."""
        key = (rank[0], program)
        bucket = self._buckets[key]
        self._touched[key] = None
        if bucket.standing is None:
            bucket.standing = bucket.ranks[0]
        was_first = bucket.stages[0][0] == stage
        self.remove(rank, stage, program)
        if was_first and bucket.items and bucket.stages[0][0] != stage:
            bucket.round += 1
            self._replace(key, bucket)

    def first(self) -> T | None:
        """The item that goes next into this message; it stays."""
        if not self._places:
            return None
        place = self._places[0]
        return self._buckets[place[0], place[3]].first()

    def begin(self) -> None:
        """Begin another message."""
        for key in self._touched:
            bucket = self._buckets.get(key)
            if bucket is not None:
                bucket.begin()
                self._replace(key, bucket)
        self._touched.clear()

    def _replace(self, key: BucketKey, bucket: _Bucket[T]) -> None:
        """Put ``bucket`` at its present place; drop it when nothing is left in it."""
        if bucket.place is not None:
            del self._places[bisect_left(self._places, bucket.place)]
            bucket.place = None
        if bucket.items:
            standing = bucket.standing or bucket.ranks[0]
            bucket.place = (key[0], bucket.round, standing, key[1])
            insort(self._places, bucket.place)
        else:
            del self._buckets[key]

    def check_invariants(self) -> None:
        assert self._places == sorted(self._places), "the buckets are not in order"
        assert len(self._places) == len(self._buckets)
        assert self._num_items == sum([len(one.items) for one in self._buckets.values()])
        for key, bucket in self._buckets.items():
            assert bucket.items, "an empty bucket is kept"
            standing = bucket.standing or bucket.ranks[0]
            assert bucket.place == (key[0], bucket.round, standing, key[1])
            assert bucket.ranks == sorted(bucket.items)
            assert bucket.stages == sorted(bucket.stages)
            assert sorted([rank for _, rank in bucket.stages]) == bucket.ranks
            is_new = not bucket.round and bucket.standing is None
            assert is_new or key in self._touched, "a round outlives its message"


def in_rounds(standing: Iterable[tuple[Rank, float, int]]) -> dict[Rank, Rank]:
    """The order in which a message would take these (rank, stage, program): for each rank a number
    to sort by. For the few that a message may carry."""
    buckets: Buckets[tuple[Rank, float, int]] = Buckets()
    for one in standing:
        buckets.add(one, one[0], one[1], one[2])
    order: dict[Rank, Rank] = {}
    while (first := buckets.first()) is not None:
        buckets.take(first[0], first[1], first[2])
        order[first[0]] = (float(len(order)),)
    return order
