"""The names of sessions that have ended."""

from __future__ import annotations

from quire.core.ids import ProgramId, TenantId
from quire.node.sessions.ended import EndedSessions

A, B = TenantId("a"), TenantId("b")


def test_an_ended_session_is_found_by_either_name_and_by_its_tenant_alone() -> None:
    ended = EndedSessions()
    ended.add(ProgramId(1), A, "prog-1", "chat")
    ended.add(ProgramId(2), A, "prog-2", None)
    assert (ended.find(A, "prog-1"), ended.find(A, "chat"), ended.find(A, "prog-2")) == (1, 1, 2)
    assert (ended.find(B, "chat"), ended.find(A, "None")) == (None, None)
    assert (ended.public_id(ProgramId(2)), ended.public_id(ProgramId(3))) == ("prog-2", None)


def test_a_client_id_means_the_latest_and_the_oldest_are_forgotten() -> None:
    ended = EndedSessions(max_remembered=2)
    for number in (1, 2, 3):
        ended.add(ProgramId(number), A, f"prog-{number}", "chat")
    assert (ended.find(A, "chat"), ended.find(A, "prog-1"), ended.find(A, "prog-2")) == (3, None, 2)
    for number in (4, 5):
        ended.add(ProgramId(number), A, f"prog-{number}", None)
    assert ended.find(A, "chat") is None
