"""The router's tree has what the engines' prefix indexes have, whatever is lost on the way."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from quire.cluster.nodes.page_tree import PageChange, PageTree, unpacked
from quire.control import EngineIndex, IndexPlace
from quire.control.memory.content import Content
from quire.control.memory.index_journal import IndexJournal
from quire.control.memory.prefix_index import PrefixIndex
from quire.core.ids import EngineId, ModelId, TenantId
from quire.server.microserving.index_event import IndexEvent
from quire.server.microserving.live_index import SHORT_KEY_BYTES, index_events

NODES = "one", "two"
PAGES = range(6)


@dataclass
class NodeIndex:
    """One engine's index, and what its node tells of it over one conversation."""

    name: str
    index: PrefixIndex = field(init=False)
    epoch: int = 0
    place: IndexPlace | None = None
    under_way: list[IndexEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = IndexJournal(max_changes=32)
        self.index = PrefixIndex("model", 1, journal=self.journal)
        self.contents = {page: self._content(page) for page in PAGES}

    def _content(self, page: int) -> Content:
        content = Content(None, canonical=True)
        content.tokens, content.num_refs = [page], 1
        content.node = self.index.child(TenantId("red"), None, content.tokens)
        return content

    @property
    def keys(self) -> set[int]:
        return {short(content) for content in self.contents.values() if content.indexed}

    def toggle(self, page: int) -> None:
        content = self.contents[page]
        (self.index.remove if content.indexed else self.index.insert)(content)

    def engine_restarts(self) -> None:
        self.index.clear()
        self.epoch += 1

    def node_restarts(self) -> None:
        """Everything begins anew, its numbers too."""
        self.__post_init__()
        self.epoch, self.place = 0, None
        self.under_way.clear()

    def look(self) -> None:
        known = self.place.number if self.place and self.place.epoch == self.epoch else None
        changes = self.index.changes(known)
        if not changes.is_nothing:
            index = EngineIndex(
                EngineId("e"), ModelId("m"), self.epoch, "content", 1, changes=changes
            )
            self.place = index.place
            self.under_way += index_events(index, max_keys=2)


def short(content: Content) -> int:
    assert content.node is not None
    return int(unpacked(content.node.key[:SHORT_KEY_BYTES])[0])


def told(tree: PageTree, node: str, event: IndexEvent) -> bool:
    change = PageChange(
        engine=event.engine,
        epoch=event.epoch,
        since=event.since,
        number=event.number,
        inserted=unpacked(b64decode(event.inserted)),
        evicted=unpacked(b64decode(event.evicted)),
        part=event.part,
        num_parts=event.num_parts,
    )
    return tree.apply(node, change)


def converse(tree: PageTree, node: NodeIndex) -> None:
    """Hear all that is under way; if something is missing, begin a new conversation."""
    node.look()
    events, node.under_way = node.under_way, []
    if not all(told(tree, node.name, event) for event in events):
        begin(tree, node)


def begin(tree: PageTree, node: NodeIndex) -> None:
    tree.forget(node.name)
    node.under_way.clear()
    node.place = None
    node.look()
    assert all(told(tree, node.name, event) for event in node.under_way)
    node.under_way.clear()


WHAT = [*["toggle"] * 8, *["look"] * 4, *["hear"] * 4, "lose", "early", "engine", "node"]


@settings(max_examples=60, deadline=None, database=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_tree_is_what_the_indexes_are(seed: int) -> None:
    chance = Random(seed)  # whose long runs are more mixed than those that hypothesis draws
    tree, nodes = PageTree(), [NodeIndex(name) for name in NODES]
    for _ in range(60):
        step, node, page = chance.choice(WHAT), chance.choice(nodes), chance.choice(PAGES)
        if step == "toggle":
            node.toggle(page)
        elif step == "look":
            node.look()
        elif step == "lose" and node.under_way:
            del node.under_way[page % len(node.under_way)]
        elif step == "early" and node.under_way:  # an event overtakes those before it
            told(tree, node.name, node.under_way.pop())
        elif step == "engine":
            node.engine_restarts()
        elif step == "node":
            node.node_restarts()
            begin(tree, node)
        elif step == "hear":
            converse(tree, node)
        tree.check_invariants()
        for one in nodes:
            assert_true_if_up_to_date(tree, one)
    for node in nodes:
        begin(tree, node)
        assert _keys(tree, node) == node.keys
    tree.check_invariants()
    for page in PAGES:
        having = {node.name: 1 for node in nodes if node.contents[page].indexed}
        assert tree.matched([short(nodes[0].contents[page])]) == having


def assert_true_if_up_to_date(tree: PageTree, node: NodeIndex) -> None:
    """A tree that has not noticed a loss, and is where the node's reader is, is right."""
    known = tree.trees(node.name).get("e")
    if known is None or node.place is None or known.num_missing:
        return
    if node.place == IndexPlace(known.epoch, known.number) and known.epoch == node.epoch:
        changes = node.index.changes(known.number)
        if changes.is_nothing:
            assert known.keys == node.keys


def _keys(tree: PageTree, node: NodeIndex) -> set[int]:
    engines = tree.trees(node.name)
    return set(engines["e"].keys) if engines else set()


@settings(max_examples=60, deadline=None, database=None)
@given(
    held=st.lists(st.sets(st.integers(0, 7)), max_size=5),
    prompt=st.lists(st.integers(0, 7), unique=True, max_size=8),
)
def test_a_node_has_as_much_of_a_prompt_as_its_first_missing_page_allows(
    held: list[set[int]], prompt: list[int]
) -> None:
    tree = PageTree()
    expected = {}
    for number, keys in enumerate(held):
        assert tree.apply(f"n{number}", PageChange("e", 0, None, 1, sorted(keys), ()))
        missing = [at for at, key in enumerate(prompt) if key not in keys]
        if depth := missing[0] if missing else len(prompt):
            expected[f"n{number}"] = depth
    assert tree.matched(prompt) == expected


def test_a_node_with_several_engines_has_what_the_best_of_them_has() -> None:
    tree = PageTree()
    assert tree.apply("n", PageChange("a", 0, None, 1, [1, 2, 3], ()))
    assert tree.apply("n", PageChange("b", 0, None, 1, [1], ()))
    assert tree.matched([1, 2, 9]) == {"n": 2}
    tree.forget("n")
    tree.check_invariants()  # nothing of it is kept
    assert tree.num_keys == 0
    assert tree.matched([1, 2, 9]) == {}


def test_changes_of_other_lives_and_missing_parts() -> None:
    tree = PageTree()
    assert tree.apply("n", PageChange("e", 2, None, 5, [1, 2], ()))
    assert tree.apply("n", PageChange("e", 1, None, 9, [7], ())), "a late one is passed over"
    assert tree.trees("n")["e"].keys == {1, 2}
    assert not tree.apply("n", PageChange("e", 3, 5, 6, [3], ())), "the life's beginning is missing"
    assert not tree.apply("n", PageChange("e", 2, 6, 7, [3], ())), "change 6 is missing"
    assert tree.apply("n", PageChange("e", 2, 5, 8, [3], (), part=0, num_parts=3))
    assert not tree.apply("n", PageChange("e", 2, 5, 8, [5], (), part=2, num_parts=3))
    assert not tree.apply("n", PageChange("e", 2, 8, 9, [6], ())), "two parts are missing"
    assert tree.apply("n", PageChange("e", 2, 5, 8, [4], [1], part=1, num_parts=3))
    assert tree.trees("n")["e"].keys == {2, 3, 4}
