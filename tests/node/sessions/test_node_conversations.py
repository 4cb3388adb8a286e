"""Inferring a session from what this node itself has answered, and from nothing else."""

from __future__ import annotations

from quire.core.ids import ProgramId, TenantId
from quire.node.sessions.conversations import ConversationIndex, ConversationTurn

ACME = TenantId("acme")
SYSTEM = ConversationTurn("system", "be brief")
ASK = ConversationTurn("user", "capital of France?")
ANSWER = ConversationTurn("assistant", "Paris")
NEXT = ConversationTurn("user", "and of Spain?")


def index_with_answer() -> ConversationIndex:
    index = ConversationIndex()
    index.remember(ACME, [SYSTEM, ASK], ANSWER, ProgramId(7))
    return index


def test_a_prompt_with_our_answer_belongs_to_its_session() -> None:
    assert index_with_answer().find(ACME, [SYSTEM, ASK, ANSWER, NEXT]) == 7


def test_a_shared_prefix_without_the_answer_does_not() -> None:
    index = index_with_answer()
    assert index.find(ACME, [SYSTEM, ASK]) is None
    assert index.find(ACME, [SYSTEM, ASK, ConversationTurn("assistant", "Lyon"), NEXT]) is None
    assert index.find(ACME, [ASK, ANSWER, NEXT]) is None


def test_tenants_are_apart() -> None:
    assert index_with_answer().find(TenantId("other"), [SYSTEM, ASK, ANSWER, NEXT]) is None


def test_the_boundary_between_turns_counts() -> None:
    index = ConversationIndex()
    index.remember(
        ACME, [ConversationTurn("user", "ab")], ConversationTurn("assistant", "c"), ProgramId(1)
    )
    assert (
        index.find(ACME, [ConversationTurn("user", "a"), ConversationTurn("assistant", "bc")])
        is None
    )


def test_the_latest_answer_wins() -> None:
    index = index_with_answer()
    more = [SYSTEM, ASK, ANSWER, NEXT]
    index.remember(ACME, more, ConversationTurn("assistant", "Madrid"), ProgramId(8))
    assert index.find(ACME, [*more, ConversationTurn("assistant", "Madrid"), NEXT]) == 8
    assert index.find(ACME, [*more, ConversationTurn("assistant", "Barcelona"), NEXT]) == 7


def test_memory_is_bounded_and_the_recently_used_stay() -> None:
    index = ConversationIndex(max_entries=2)
    for number in (1, 2):
        index.remember(ACME, [ConversationTurn("user", str(number))], ANSWER, ProgramId(number))
    assert index.find(ACME, [ConversationTurn("user", "1"), ANSWER]) == 1
    index.remember(ACME, [ConversationTurn("user", "3")], ANSWER, ProgramId(3))
    assert len(index) == 2
    assert index.find(ACME, [ConversationTurn("user", "1"), ANSWER]) == 1
    assert index.find(ACME, [ConversationTurn("user", "2"), ANSWER]) is None
