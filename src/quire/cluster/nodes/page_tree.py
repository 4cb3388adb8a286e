"""Which engines have which pages: a copy of their prefix indexes, as their nodes tell them.

Owns one set of keys for each engine (``EngineTree``) and, over all of them, which engines have a
key. A key stands for a page and all pages before it, so that the pages of a prompt are found in as
many look-ups as it has pages, however many engines there are. Pure bookkeeping.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Keys = Sequence[int]
"""Of a prompt's full pages, in order."""


@dataclass(frozen=True, slots=True)
class PageChange:
    """What has changed of the index of one life (``epoch``) of an engine, from change ``since`` to
    ``number``, or one of ``num_parts`` of it; ``since`` None: it begins anew."""

    engine: str
    epoch: int
    since: int | None
    number: int
    inserted: Keys
    evicted: Keys
    part: int = 0
    num_parts: int = 1


@dataclass(slots=True, eq=False)
class EngineTree:
    """The index of one engine of ``node``, up to change ``number`` of its life ``epoch``, of whose
    last change ``num_missing`` parts are to come. ``bit`` stands for it in sets of engines."""

    node: str
    bit: int
    epoch: int = -1
    number: int = -1
    num_missing: int = 0
    keys: set[int] = field(default_factory=set)

    def is_followed_by(self, change: PageChange) -> bool:
        """Whether nothing is missing between what it is and ``change``."""
        if change.epoch != self.epoch:
            return False
        if change.part:
            num_left = change.num_parts - change.part
            return (change.number, num_left) == (self.number, self.num_missing)
        return change.since == self.number and not self.num_missing


class PageTree:
    """The trees of all engines behind a router."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, EngineTree]] = {}
        self._by_bit: dict[int, EngineTree] = {}
        self._free_bits: list[int] = []
        self._holders: dict[int, int] = {}

    @property
    def num_keys(self) -> int:
        """Pages that any engine has."""
        return len(self._holders)

    def trees(self, node: str) -> dict[str, EngineTree]:
        """Those of the engines of ``node``, by the engines' names."""
        return self._nodes.get(node, {})

    # -- what nodes tell ---------------------------------------------------------------------------

    def apply(self, node: str, change: PageChange) -> bool:
        """Take ``change`` in; False: something before it is missing, so that the tree is not what
        the node has and must be told anew. A change of an earlier life is passed over."""
        tree = self._nodes.get(node, {}).get(change.engine)
        if tree is not None and change.epoch < tree.epoch:
            return True
        if change.since is None and change.part == 0:
            tree = tree or self._added(node, change.engine)
            self._replace(tree, change.inserted)
        elif tree is not None and tree.is_followed_by(change):
            self._insert(tree, change.inserted)
            self._evict(tree, change.evicted)
        else:
            return False
        tree.epoch, tree.number = change.epoch, change.number
        tree.num_missing = change.num_parts - change.part - 1
        return True

    def forget(self, node: str) -> None:
        """What ``node`` has told is not so any more."""
        for tree in self._nodes.pop(node, {}).values():
            self._evict(tree, list(tree.keys))
            del self._by_bit[tree.bit]
            self._free_bits.append(tree.bit)

    # -- what is where -----------------------------------------------------------------------------

    def matched(self, keys: Keys) -> dict[str, int]:
        """How many pages of a prompt, from its start, each node has in one of its engines; nodes
        without any are left out."""
        found: dict[str, int] = {}
        holders = self._holders
        going = holders.get(keys[0], 0) if keys else 0
        for depth in range(1, len(keys)):
            if not going:
                break
            here = going & holders.get(keys[depth], 0)
            if here != going:
                self._note(found, going & ~here, depth)
                going = here
        self._note(found, going, len(keys))
        return found

    def _note(self, found: dict[str, int], bits: int, depth: int) -> None:
        """The engines of ``bits`` have ``depth`` pages; those that are noted later have more."""
        for bit in _each(bits):
            found[self._by_bit[bit].node] = depth

    # -- inside ------------------------------------------------------------------------------------

    def _added(self, node: str, engine: str) -> EngineTree:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._by_bit)
        tree = self._by_bit[bit] = EngineTree(node, bit)
        self._nodes.setdefault(node, {})[engine] = tree
        return tree

    def _replace(self, tree: EngineTree, keys: Keys) -> None:
        after = set(keys)
        self._evict(tree, tree.keys - after)
        self._insert(tree, after - tree.keys)

    def _insert(self, tree: EngineTree, keys: Iterable[int]) -> None:
        holders, bit = self._holders, tree.bit
        for key in keys:
            tree.keys.add(key)
            others = holders.get(key)
            # most pages are at one engine alone: all of those share one object
            holders[key] = bit if others is None else others | bit

    def _evict(self, tree: EngineTree, keys: Iterable[int]) -> None:
        holders, bit = self._holders, tree.bit
        for key in keys:
            if key not in tree.keys:
                continue  # it came and went between two looks
            tree.keys.discard(key)
            others = holders[key] & ~bit
            if others:
                holders[key] = others
            else:
                del holders[key]

    def check_invariants(self) -> None:
        trees = [tree for engines in self._nodes.values() for tree in engines.values()]
        assert {tree.bit: tree for tree in trees} == self._by_bit
        assert not set(self._free_bits) & self._by_bit.keys()
        for key, bits in self._holders.items():
            assert bits, "a page that nobody has is kept"
            assert all(key in self._by_bit[bit].keys for bit in _each(bits))
        assert all(self._holders[key] & tree.bit for tree in trees for key in tree.keys)


def _each(bits: int) -> Iterator[int]:
    while bits:
        bit = bits & -bits
        yield bit
        bits ^= bit


def unpacked(keys: bytes) -> Keys:
    """Keys of eight bytes each, as a node tells them."""
    return array("Q", keys)
