"""What counts as the working set of a program."""

from __future__ import annotations

from quire.control.memory.content import ChainNode
from quire.control.memory.packed_tokens import pack_tokens
from quire.control.scheduler.pausing.trail import Trail


def chain(name: str, num_pages: int, parent: ChainNode | None = None) -> ChainNode:
    node = parent
    for page in range(num_pages):
        node = ChainNode(node, pack_tokens([page]), f"{name}/{page}".encode())
    assert node is not None
    return node


def test_of_a_conversation_the_last_context_counts() -> None:
    trail = Trail()
    trail.add(chain("a", 4), 5)
    trail.add(chain("b", 7), 8)
    assert trail.num_blocks == 8
    assert trail.leaves() == [trail.leaves()[0]]


def test_of_branches_side_by_side_all_count_and_what_they_share_once() -> None:
    root = chain("root", 10)
    trail = Trail()
    trail.widen(3)
    for name in ("a", "b", "c"):
        trail.add(chain(name, 2, root), 13)
    assert trail.num_blocks == 10 + 3 * 3


def test_a_branch_that_was_left_counts_no_more() -> None:
    root = chain("root", 10)
    trail = Trail()
    trail.widen(2)
    for name in ("a", "b", "c"):
        trail.add(chain(name, 2, root), 12)
    assert trail.num_blocks == 10 + 2 * 2


def test_contexts_without_a_chain_share_nothing() -> None:
    trail = Trail()
    trail.widen(2)
    trail.add(None, 4)
    trail.add(None, 3)
    assert (trail.num_blocks, trail.leaves()) == (7, [])


def test_a_chain_that_was_computed_again_is_the_same_chain() -> None:
    trail = Trail()
    trail.widen(2)
    trail.add(chain("a", 6), 6)
    trail.add(chain("a", 6), 7)
    assert trail.num_blocks == 7
