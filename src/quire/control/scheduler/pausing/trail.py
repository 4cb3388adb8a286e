"""The working set of one program: the contexts that its last calls ended with.

As many calls count as the program had at one time: of a search, the branches count that it works
on, and not those that it has left. What they have in common counts once. Owns the estimate, in
blocks; does not know whether these blocks are on the device, or anywhere.
"""

from __future__ import annotations

from collections import deque

from quire.control.memory.content import ChainNode


class Trail:
    """One program's last contexts. ``num_blocks``: the working set. Blocks without a canonical
    chain count as its own."""

    __slots__ = ("_ends", "_width", "num_blocks")

    def __init__(self) -> None:
        self._ends: deque[tuple[ChainNode | None, int]] = deque()
        self._width = 1
        self.num_blocks = 0

    def widen(self, width: int) -> None:
        """Note that ``width`` of its calls run side by side."""
        self._width = max(self._width, width)

    def add(self, leaf: ChainNode | None, num_blocks: int) -> None:
        """Add the end of a call, with a context of ``num_blocks``; ``leaf``: its last full page, if
        all of it is canonical."""
        ends = self._ends
        ends.append((leaf, num_blocks))
        while len(ends) > self._width:
            ends.popleft()
        self.num_blocks = num_blocks if len(ends) == 1 else self._count()

    def _count(self) -> int:
        seen: set[bytes] = set()
        total = 0
        for node, num_blocks in reversed(self._ends):
            while node is not None:
                if node.key in seen:
                    num_blocks -= node.depth + 1
                    break
                seen.add(node.key)
                node = node.parent
            total += num_blocks
        return total

    def leaves(self) -> list[ChainNode]:
        """The last full pages of these contexts, the newest first."""
        return [leaf for leaf, _ in reversed(self._ends) if leaf is not None]
