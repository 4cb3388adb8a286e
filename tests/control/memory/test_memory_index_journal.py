"""Readers of an index have a copy of it, whatever they miss."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from quire.control.memory.content import Content
from quire.control.memory.index_journal import IndexChanges, IndexJournal
from quire.control.memory.prefix_index import PrefixIndex
from quire.core.ids import TenantId

TENANT = TenantId("red")


def content(index: PrefixIndex, number: int) -> Content:
    one = Content(None, canonical=True)
    one.tokens, one.num_refs = [number], 1
    one.node = index.child(TENANT, None, one.tokens)
    return one


class Reader:
    """A copy of an index, kept up from what it is told."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.number: int | None = None
        self.num_snapshots = 0

    def read(self, changes: IndexChanges) -> None:
        if changes.since is None:
            self.keys.clear()
            self.num_snapshots += 1
        else:
            assert changes.since == self.number
        for at, is_new in enumerate(changes.are_new):
            key = changes.keys[32 * at : 32 * at + 32]
            if is_new:
                assert key not in self.keys
                self.keys.add(key)
            else:
                self.keys.remove(key)
        self.number = changes.number


steps = st.lists(
    st.one_of(
        st.tuples(st.just("toggle"), st.integers(0, 7)),
        st.tuples(st.just("read"), st.integers(0, 1)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None, database=None)
@given(steps=steps, max_changes=st.sampled_from([2, 5, 100]))
def test_a_reader_has_what_the_index_has(steps: list[tuple[str, int]], max_changes: int) -> None:
    index = PrefixIndex("model", 1, journal=IndexJournal(max_changes))
    contents = {number: content(index, number) for number in range(8)}
    readers = Reader(), Reader()
    for what, number in steps:
        if what == "toggle" and contents[number].indexed:
            index.remove(contents[number])
        elif what == "toggle":
            index.insert(contents[number])
        elif what == "clear":
            index.clear()
        else:
            reader = readers[number]
            reader.read(index.changes(reader.number))
            assert reader.keys == {one.node.key for one in index.contents() if one.node}


def test_nothing_is_noted_that_nobody_reads() -> None:
    journal = IndexJournal(max_changes=4)
    index = PrefixIndex("model", 1, journal=journal)
    index.insert(content(index, 0))
    assert not journal.is_on
    reader = Reader()
    reader.read(index.changes(None))
    for number in range(1, 9):
        index.insert(content(index, number))
        assert len(journal._keys) <= 4
    assert not journal.is_on, "the reader has left"
    reader.read(index.changes(reader.number))
    assert (len(reader.keys), reader.num_snapshots) == (9, 2)


def test_a_reader_that_comes_often_enough_gets_the_whole_index_once() -> None:
    index = PrefixIndex("model", 1, journal=IndexJournal(max_changes=4))
    reader = Reader()
    for number in range(50):
        index.insert(content(index, number))
        reader.read(index.changes(reader.number))
    assert (len(reader.keys), reader.num_snapshots) == (50, 1)
    assert index.changes(reader.number).is_nothing


def test_a_full_journal_that_is_read_keeps_its_newer_half() -> None:
    journal = IndexJournal(max_changes=6)
    journal.begin()
    for number in range(7):
        journal.note(bytes([number]) * 32, is_new=True)
    oldest = journal.number - 4
    assert [journal.has(oldest + step) for step in (-1, 0, 4, 5)] == [False, True, True, False]
    assert journal.since(oldest).keys[::32] == bytes([3, 4, 5, 6])
