"""The order in which contents without a holder are evicted.

Owns each content's ``turn``. Contents come and go with every call, all pages of a prompt at once,
while few are evicted: so one that leaves is taken out by its turn, without a look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from quire.control.memory.content import Content

_MIN_GAPS = 64
"""Gaps that are not worth closing."""
MOST_LOOKED_AT = 1024
"""The most contents that a search for beginnings looks at: each message bears its cost."""


class EvictionOrder:
    """Contents in order, each at most once. ``_line``: those that were added, and None where one
    has left; a content's turn is its index and one. ``_first``: those that were put before all
    others, the first one last; their turns are negative. ``_begin``: no content of ``_line`` stands
    before this index."""

    def __init__(self) -> None:
        self._line: list[Content | None] = []
        self._first: list[Content | None] = []
        self._begin = 0
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def add(self, content: Content) -> None:
        """Let ``content``, which has no turn, be evicted after all others."""
        assert not content.turn, "a content has one turn"
        self._line.append(content)
        content.turn = len(self._line)
        self._num += 1

    def put_first(self, content: Content) -> None:
        """Let ``content``, which has no turn, be evicted before all others."""
        assert not content.turn, "a content has one turn"
        self._first.append(content)
        content.turn = -len(self._first)
        self._num += 1

    def remove(self, content: Content) -> None:
        """Take out ``content``, which has a turn."""
        turn = content.turn
        if turn > 0:
            self._line[turn - 1] = None
        else:
            assert turn, "a content without a turn is taken out"
            self._first[-turn - 1] = None
        content.turn = 0
        self._num -= 1
        if len(self._line) + len(self._first) > 2 * self._num + _MIN_GAPS:
            self._close_gaps()

    def contents(self) -> Iterator[Content]:
        """All, in order. Nothing may be added or removed meanwhile."""
        for index in range(len(self._first) - 1, -1, -1):
            content = self._first[index]
            if content is not None:
                yield content
        for index in range(self._begin, len(self._line)):
            content = self._line[index]
            if content is not None:
                yield content

    def first_free(self) -> Content | None:
        """The first content that is not pinned."""
        first, line = self._first, self._line
        while first and first[-1] is None:
            first.pop()
        while self._begin < len(line) and line[self._begin] is None:
            self._begin += 1
        return next((one for one in self.contents() if not one.num_pins), None)

    def beginnings(self, num_contents: int) -> list[Content]:
        """Return at most ``num_contents`` (one or more) of the first ones that are not pinned: of
        each prompt the pages at its beginning, without which the others cannot be found, the last
        of these pages first. Only the first ``MOST_LOOKED_AT`` contents are looked at, so of a
        longer prompt these are the pages nearest to its beginning among them."""
        found: list[Content] = []
        prompt: list[Content] = []
        for content in islice(self.contents(), max(num_contents, MOST_LOOKED_AT)):
            if content.num_pins:
                continue
            if prompt and not _is_before(content, prompt[-1]):
                found += prompt[len(found) - num_contents :]
                if len(found) == num_contents:
                    return found
                prompt = []
            prompt.append(content)
        return found + prompt[len(found) - num_contents :]

    def clear(self) -> list[Content]:
        """Take out all, and return them in order."""
        contents = list(self.contents())
        for content in contents:
            content.turn = 0
        self._line, self._first, self._begin, self._num = [], [], 0, 0
        return contents

    def _close_gaps(self) -> None:
        first = [one for one in self._first if one is not None]
        line = [one for one in self._line if one is not None]
        for number, content in enumerate(first, 1):
            content.turn = -number
        for number, content in enumerate(line, 1):
            content.turn = number
        self._first, self._line, self._begin = [*first], [*line], 0

    def check_invariants(self) -> None:
        assert self._num == len(list(self.contents())), "a content is behind the beginning"
        for number, content in enumerate(self._line, 1):
            assert content is None or content.turn == number, "a content has another turn"
        for number, content in enumerate(self._first, 1):
            assert content is None or content.turn == -number, "a content has another turn"


def _is_before(content: Content, after: Content) -> bool:
    """Whether ``content`` is the page before ``after`` in its prompt."""
    node, node_after = content.node, after.node
    assert node is not None
    assert node_after is not None
    return node_after.parent is not None and node_after.parent.key == node.key
