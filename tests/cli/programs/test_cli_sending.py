"""Who sends code to a node sees what the node does with it."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, Self

import httpx
import pytest

from quire.cli.client import NodeClient
from quire.cli.programs.sending import sending


class Building:
    """A node whose sandbox goes through ``stages``, one for each request."""

    def __init__(self, *stages: str) -> None:
        self.stages = list(stages)
        self.is_done = threading.Event()

    def another(self) -> Building:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def sandbox_stage(self) -> str:
        if not self.stages:
            self.is_done.set()
            return ""
        return self.stages.pop(0)


def test_each_stage_of_the_sandbox_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    node = Building("", "building", "building", "compiling")
    with sending(node, "agent.py", interval_s=0.001):
        assert node.is_done.wait(60)
    assert told.getvalue() == "building ...\ncompiling ...\n"


def test_an_error_of_the_block_passes_and_ends_the_reading() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), sending(Building(), "agent.py", interval_s=1000.0):
        raise ZeroDivisionError
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("health", "stage"),
    [
        ({"sandbox": {"0": {"state": "starting", "detail": "building"}}}, "building"),
        (
            {"sandbox": {"0": {"state": "ready"}, "1": {"state": "starting", "detail": "b"}}},
            "b",
        ),
        ({"sandbox": {"0": {"state": "paused", "detail": "lost 5 times"}}}, ""),
        ({"status": "ok", "engines": {}}, ""),
        ([], ""),
    ],
    ids=["starting", "second", "paused", "router", "no node"],
)
def test_the_stage_is_read_from_the_health(health: Any, stage: str) -> None:
    with NodeClient("http://127.0.0.1:1") as node:
        answers = httpx.MockTransport(lambda request: httpx.Response(503, json=health))
        node._http = httpx.Client(base_url=node.url, transport=answers)
        assert node.sandbox_stage() == stage


def test_a_node_that_does_not_answer_has_no_stage() -> None:
    with NodeClient("http://127.0.0.1:1") as node:
        assert node.sandbox_stage() == ""
