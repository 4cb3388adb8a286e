"""Programs and sessions by the beginnings of their ids, without a node."""

from __future__ import annotations

from typing import Any

import pytest
from cli_invoke import invoke

from quire.cli.client import NodeClient

AWAY = ("--url", "http://127.0.0.1:9")
LISTED = [
    {"id": "prog-1a", "form": "session", "node": "n2"},
    {"id": "prog-2b", "form": "inferlet"},
    {"id": "prog-2bc", "form": "inferlet"},
]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The sessions that were ended, with their nodes."""
    found: list[tuple[str, str | None]] = []

    def end_session(self: NodeClient, public_id: str, *, node: str | None = None) -> dict[str, Any]:
        found.append((public_id, node))
        return {"id": public_id}

    monkeypatch.setattr(NodeClient, "programs", lambda self: LISTED)
    monkeypatch.setattr(NodeClient, "end_session", end_session)
    return found


def test_kill_ends_a_session_at_its_node(
    capsys: pytest.CaptureFixture[str], ended: list[tuple[str, str | None]]
) -> None:
    ran = invoke(capsys, "kill", "prog-1", *AWAY)
    assert (ran.code, ran.out) == (0, "ended the session prog-1a\n")
    assert ended == [("prog-1a", "n2")]


@pytest.mark.parametrize("command", ["logs", "attach"])
def test_a_session_has_no_log_and_no_messages(
    capsys: pytest.CaptureFixture[str], ended: list[tuple[str, str | None]], command: str
) -> None:
    ran = invoke(capsys, command, "prog-1a", *AWAY)
    assert (ran.code, ended) == (2, [])
    assert "prog-1a is a session" in ran.err


def test_an_id_is_found_by_a_beginning_that_is_its_own(
    ended: list[tuple[str, str | None]],
) -> None:
    with NodeClient("http://127.0.0.1:9") as node:
        assert node.full_id("prog-2b") == "prog-2b", "the whole id of one, the beginning of two"
        assert node.full_id("prog-2bc") == "prog-2bc"
