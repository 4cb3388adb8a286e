"""Which engines have which pages: a copy of their prefix indexes, kept up to date by their nodes.

Owns one set of keys for each engine (``EngineTree``) and, over all of them, which engines have a
key. A key stands for a page and all pages before it, so that the pages of a prompt are found in as
many look-ups as it has pages, however many engines there are. Pure bookkeeping.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Keys = Sequence[int]
"""The keys of a prompt's full pages, in order."""


@dataclass(frozen=True, slots=True)
class PageChange:
    """A change of the prefix index of an engine in one life (``epoch``), from change ``since`` to
    ``number``, or one of ``num_parts`` parts of it. If ``since`` is None, the index begins anew."""

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
    """The prefix index of one engine of ``node``, up to change ``number`` of its life ``epoch``;
    ``num_missing`` parts of that change are still to come. ``bit`` stands for the engine in sets of
    engines."""

    node: str
    bit: int
    epoch: int = -1
    number: int = -1
    num_missing: int = 0
    keys: set[int] = field(default_factory=set)

    def is_followed_by(self, change: PageChange) -> bool:
        """Return whether ``change`` is the next one after this state."""
        if change.epoch != self.epoch:
            return False
        if change.part:
            num_left = change.num_parts - change.part
            return (change.number, num_left) == (self.number, self.num_missing)
        return change.since == self.number and not self.num_missing


class Matches(Mapping[str, int]):
    """How many tokens of a prompt each node has, by name; nodes that have none are left out. Read
    it before the tree changes. ``runs``: pairs of a number of tokens and the engines (as bits) that
    have so many, the largest number first: a thousand engines with one system prompt are one entry.
    """

    def __init__(self, runs: Sequence[tuple[int, int]], tree: PageTree) -> None:
        self._runs = runs
        self._tree = tree

    def __getitem__(self, node: str) -> int:
        bits = sum(tree.bit for tree in self._tree.trees(node).values())
        for num_tokens, having in self._runs:
            if having & bits:
                return num_tokens
        raise KeyError(node)

    def __iter__(self) -> Iterator[str]:
        return iter(self.longest(None))

    def __len__(self) -> int:
        return len(self.longest(None))

    def longest(self, limit: int | None) -> dict[str, int]:
        """Return the nodes that have most, at most ``limit`` of them."""
        found: dict[str, int] = {}
        for num_tokens, bits in self._runs:
            for node in self._tree.names(bits):
                if limit is not None and len(found) >= limit:
                    return found
                found.setdefault(node, num_tokens)
        return found


class PageTree:
    """The trees of all engines behind a router."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, EngineTree]] = {}
        self._by_bit: dict[int, EngineTree] = {}
        self._free_bits: list[int] = []
        self._holders: dict[int, int] = {}

    @property
    def num_keys(self) -> int:
        """Number of pages that at least one engine has."""
        return len(self._holders)

    def trees(self, node: str) -> dict[str, EngineTree]:
        """Return the trees of the engines of ``node``, by the engines' names."""
        return self._nodes.get(node, {})

    # -- what nodes tell ---------------------------------------------------------------------------

    def apply(self, node: str, change: PageChange) -> bool:
        """Apply ``change``. Return False if a change before it is missing: the node then has to
        send its whole index again. A change of an earlier life is ignored."""
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
        """Remove everything that ``node`` has reported."""
        for tree in self._nodes.pop(node, {}).values():
            self._evict(tree, list(tree.keys))
            del self._by_bit[tree.bit]
            self._free_bits.append(tree.bit)

    # -- what is where -----------------------------------------------------------------------------

    def matched(self, keys: Keys, page_size: int = 1) -> Matches:
        """Return how much of a prompt, from its start, each node has in one of its engines."""
        runs: list[tuple[int, int]] = []
        holders = self._holders
        going = holders.get(keys[0], 0) if keys else 0
        for depth in range(1, len(keys)):
            if not going:
                break
            here = going & holders.get(keys[depth], 0)
            if here != going:
                runs.append((depth * page_size, going & ~here))
                going = here
        if going:
            runs.append((len(keys) * page_size, going))
        runs.reverse()
        return Matches(runs, self)

    def names(self, bits: int) -> Iterator[str]:
        """Yield the nodes of these engines."""
        for bit in _each(bits):
            yield self._by_bit[bit].node

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
            # most pages are at one engine alone: their entries share one integer
            holders[key] = bit if others is None else others | bit

    def _evict(self, tree: EngineTree, keys: Iterable[int]) -> None:
        holders, bit = self._holders, tree.bit
        for key in keys:
            if key not in tree.keys:
                continue  # it was inserted and evicted between two changes
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
    """Return keys of eight bytes each, as a node sends them, as integers."""
    return array("Q", keys)
