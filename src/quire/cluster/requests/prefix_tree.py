"""A radix tree of prompts: how much of a prompt each holder has seen.

Prompts are texts or token ids. An edge is a block of ``block`` characters or ids; the tree is
stored flat, each node under the hash of the path that leads to it, so that a prompt of n blocks
costs n look-ups however large the tree is. The least recently used nodes are dropped first. Pure
bookkeeping.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Holder = TypeVar("Holder")

BLOCK = 64
MAX_NODES = 1 << 20
"""The most nodes of a tree, about 300 bytes each."""


class PrefixTree(Generic[Holder]):
    """A tree of at most ``max_nodes`` blocks."""

    def __init__(self, block: int = BLOCK, max_nodes: int = MAX_NODES) -> None:
        self._block = block
        self._max_nodes = max_nodes
        self._holders: OrderedDict[int, set[Holder]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def matched(self, prompt: str | tuple[int, ...]) -> dict[Holder, int]:
        """Return how many characters or ids of ``prompt``, from its start, each holder has seen;
        only whole blocks count."""
        found: dict[Holder, int] = {}
        going: set[Holder] | None = None
        for depth, key in enumerate(self._path(prompt), 1):
            here = self._holders.get(key)
            going = here if going is None or here is None else going & here
            if not going:
                break
            found.update(dict.fromkeys(going, depth * self._block))
        return found

    def add(self, prompt: str | tuple[int, ...], holder: Holder) -> None:
        """Note that ``holder`` has seen ``prompt``."""
        # the deepest first, so that no node is dropped before those below it
        for key in reversed(list(self._path(prompt))):
            self._holders.setdefault(key, set()).add(holder)
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_nodes:
            self._holders.popitem(last=False)

    def _path(self, prompt: str | tuple[int, ...]) -> Iterator[int]:
        key = hash(type(prompt))
        for start in range(0, len(prompt) - self._block + 1, self._block):
            key = hash((key, prompt[start : start + self._block]))
            yield key
