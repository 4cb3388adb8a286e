"""The bars of models that load: there while they do, and gone when they have."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from cli_invoke import invoke
from terminal_screen import screen_of

from quire.cli import progress_lines
from quire.cli.loading import loading_progress

WIDTH = 160


def test_the_bars_are_gone_when_the_node_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screens = []

    def run(node: object, server: object, **hooks: Any) -> None:
        hooks["on_listening"]("http://node")
        hooks["progress"]("quire-mini: starting", 0.5)
        hooks["on_ready"]("http://node")
        screens.append(screen_of(capsys.readouterr().err, WIDTH))

    for name, value in (("TTY_COMPATIBLE", "1"), ("TERM", "xterm"), ("COLUMNS", str(WIDTH))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("quire.cli.serve.run_server", run)
    monkeypatch.setattr("quire.cli.serve.settle", lambda: None)
    assert invoke(capsys, "serve", "--port", "0").code == 0
    shown = [line for line in screens[0] if line]
    assert shown == [
        "loading quire-mini ..., listening on http://node",
        "Quire serves quire-mini on http://node (OpenAI clients: base_url=http://node/v1)",
    ]


def test_workflows_that_were_named_are_told_with_their_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(node: object, server: object, **hooks: Any) -> None:
        hooks["on_ready"]("http://node")

    monkeypatch.setattr("quire.cli.serve.run_server", run)
    monkeypatch.setattr("quire.cli.serve.settle", lambda: None)
    ran = invoke(capsys, "serve", "--workflow", "naive-rag", "--workflow", "agent")
    assert ran.code == 0
    told = "Workflows at POST http://node/v1/workflows/NAME/query: naive-rag, agent"
    assert told in " ".join(ran.err.split())
    assert "Workflows" not in invoke(capsys, "serve").err


def test_a_stage_that_begins_later_is_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first program of a node has its sandbox built, long after the models are there."""
    monkeypatch.setattr(progress_lines, "INTERVAL_S", inf)
    with loading_progress() as progress:
        progress("quire-mini: starting", 0.5)
    assert capsys.readouterr().err == "", "there is no terminal, and it took no ten seconds"
    for fraction in (0.0, 0.5, 1.0):
        progress("building the sandbox", fraction)
    assert capsys.readouterr().err == "building the sandbox ...\n"


def test_without_a_terminal_a_long_stage_is_told_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_lines, "INTERVAL_S", 0.0)
    with loading_progress() as progress:
        for fraction in (0.0, 0.5):
            progress("compiling", fraction)
    assert capsys.readouterr().err == "compiling: 0 %\ncompiling: 50 %\n"
