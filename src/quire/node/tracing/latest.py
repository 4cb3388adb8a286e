"""The latest records of each of many owners, bounded for each and for all together.

Owns which record is dropped when another is added: its owner's oldest, and the oldest of all.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class LatestItems(Generic[T]):
    """The records of one owner, oldest first. ``num_counted``: how many were dropped for the
    owner's own limit and still count towards the limit of all."""

    __slots__ = ("num_counted", "records")

    def __init__(self) -> None:
        self.records: list[T] = []
        self.num_counted = 0


class LatestOfAll(Generic[T]):
    """Keeps ``max_each`` records of one owner, ``max_all`` together. The records of an owner that
    was dropped count until they are the oldest."""

    def __init__(self, max_each: int, max_all: int) -> None:
        self._max_each = max_each
        self._max_all = max_all
        self._owners: deque[LatestItems[T]] = deque()

    def add(self, owner: LatestItems[T], record: T) -> None:
        owner.records.append(record)
        if len(owner.records) > self._max_each:
            del owner.records[0]
            owner.num_counted += 1
        self._owners.append(owner)
        if len(self._owners) > self._max_all:
            oldest = self._owners.popleft()
            if oldest.num_counted:
                oldest.num_counted -= 1
            else:
                del oldest.records[0]
