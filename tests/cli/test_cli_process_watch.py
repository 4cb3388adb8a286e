"""``quire ps --watch`` while its node goes away and comes back."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cli_invoke import invoke
from rich.console import Console

from quire.cli import processes
from quire.cli.client import AGAIN_TIMEOUT, NodeClient
from quire.client.wire import TIMEOUT
from quire.core.errors import EngineLost

NUM_LOOKS = 4


class Looks:
    """What a node answers: a new program at each look, and nothing at the second and third.
    ``drawn``: what was on the screen before each of them but the first."""

    def __init__(self) -> None:
        self.timeouts: list[httpx.Timeout] = []
        self.drawn: list[str] = []
        self.file = io.StringIO()

    def programs(self, timeout: httpx.Timeout = TIMEOUT) -> list[dict[str, Any]]:
        self.timeouts.append(timeout)
        number = len(self.timeouts)
        if number in (2, 3):
            raise EngineLost(f"no node\nanswers \x1b look {number}")
        known = {"id": f"prog-{number}", "name": "p", "form": "inferlet", "state": "running"}
        return [known | {"process": None, "created": 1.0, "ended": None, "parent": None}]

    def sleep(self, _: float) -> None:
        drawn = self.file.getvalue()
        self.drawn.append(drawn[sum(map(len, self.drawn)) :])
        if len(self.drawn) == NUM_LOOKS:
            raise KeyboardInterrupt


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(NodeClient, "programs", lambda _, *timeout: looks.programs(*timeout))
    clock = SimpleNamespace(sleep=looks.sleep, time=time.time)
    monkeypatch.setattr(processes, "time", clock)
    screen = Console(file=looks.file, width=160, force_terminal=True, color_system=None)
    monkeypatch.setattr(processes, "output", lambda width=None: screen)
    return looks


def test_a_node_that_goes_away_is_looked_for_again(
    capsys: pytest.CaptureFixture[str], looks: Looks
) -> None:
    invoke(capsys, "ps", "--watch")
    ids = [[f"prog-{number}" in drawn for drawn in looks.drawn] for number in (1, 4)]
    assert ids == [[True, True, True, False], [False, False, False, True]]
    said = [rf"what is shown is old: no node answers \u001b look {number}" for number in (2, 3)]
    assert [[one in drawn for drawn in looks.drawn] for one in said] == [
        [False, True, False, False],
        [False, False, True, False],
    ]
    assert looks.timeouts == [TIMEOUT, *[AGAIN_TIMEOUT] * 3]


def test_a_node_that_does_not_answer_at_first_is_an_error(
    capsys: pytest.CaptureFixture[str], looks: Looks
) -> None:
    looks.timeouts.append(TIMEOUT)
    ran = invoke(capsys, "ps", "--watch")
    assert ran.code != 0
    assert "no node" in ran.err
    assert not looks.drawn
