"""The latest changes of a prefix index, for readers that keep a copy of it.

Owns the numbers of the changes and how many are kept. Changes are noted from the first read on.
Noting stops when as many changes as are kept have passed without a read: so the journal needs no
clock, and readers need not announce that they leave. A reader whose number is no longer kept gets
the whole index.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHANGES = 1 << 14


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """The changes behind number ``since``, up to ``number``, in their order; ``since`` None: all
    that is indexed. ``keys``: 32 bytes each; ``are_new``: one byte each, 1 for a key that was
    added, 0 for one that was removed."""

    since: int | None
    number: int
    keys: bytes
    are_new: bytes

    @property
    def is_nothing(self) -> bool:
        return self.since == self.number


class IndexJournal:
    """At most ``max_changes`` changes are kept. ``is_on``: a reader reads, so changes are noted."""

    def __init__(self, max_changes: int = MAX_CHANGES) -> None:
        self._max_changes = max_changes
        self._first = 0  # the number before the oldest change that is kept
        self._keys: list[bytes] = []
        self._are_new: list[int] = []
        self._was_read = False
        self.is_on = False

    @property
    def number(self) -> int:
        return self._first + len(self._keys)

    def note(self, key: bytes, *, is_new: bool) -> None:
        """Note a change. Call it only while ``is_on``."""
        if len(self._keys) >= self._max_changes:
            self._shorten()
            if not self.is_on:
                return
        self._keys.append(key)
        self._are_new.append(1 if is_new else 0)

    def begin(self) -> None:
        """Note changes from now on."""
        if not self.is_on:
            self.forget()
            self.is_on = True
        self._was_read = True

    def has(self, since: int) -> bool:
        """Whether all changes behind number ``since`` are kept."""
        return self.is_on and self._first <= since <= self.number

    def since(self, since: int) -> IndexChanges:
        """The changes behind ``since``, which are kept."""
        self._was_read = True
        begin = since - self._first
        return IndexChanges(
            since, self.number, b"".join(self._keys[begin:]), bytes(self._are_new[begin:])
        )

    def forget(self) -> None:
        """Forget all changes, as the index is another one: no number that was given out is valid
        any more."""
        self._first = self.number + 1
        self._keys.clear()
        self._are_new.clear()

    def _shorten(self) -> None:
        """Drop the older half; drop all, and stop noting, if no reader has read since the last
        time."""
        if not self._was_read:
            self.forget()
            self.is_on = False
            return
        half = self._max_changes // 2
        del self._keys[:half]
        del self._are_new[:half]
        self._first += half
        self._was_read = False
