"""The bars of models that load: there while they do, and gone when they have."""

from __future__ import annotations

from typing import Any

import pytest
from cli_invoke import invoke
from terminal_screen import screen_of

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
