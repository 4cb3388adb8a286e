"""What a stranger sees of an installation: its steps, and the remedy where one fails."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

INSTALL = Path(__file__).parents[2] / "tools" / "install.py"
EXITS = "import sys; sys.exit(int(sys.argv[1]))"


@pytest.fixture
def install() -> dict[str, Any]:
    return runpy.run_path(str(INSTALL))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_step_is_one_line(
    install: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    install["run"]("counting to none", [sys.executable, "-c", EXITS, "0"], "no remedy")
    assert capfd.readouterr().out.splitlines()[0].startswith("==> counting to none")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_step_that_fails_has_its_remedy(
    install: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    with pytest.raises(install["InstallError"], match=r"ended with status 3: look there"):
        install["run"]("failing", [sys.executable, "-c", EXITS, "3"], "look there")


def test_pip_tells_of_warnings_and_errors_alone(
    install: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    names = install["install"].__globals__
    monkeypatch.setitem(names, "run", lambda step, command, remedy: commands.append(command))
    monkeypatch.setitem(names, "compile_modules", lambda python: None)
    monkeypatch.setitem(
        names, "begin_kernel", lambda python: names["subprocess"].Popen([sys.executable, "-c", ""])
    )
    install["install"](".venv", ["requirements.lock"])
    assert len(commands) == 4
    assert all("--quiet" in command for command in commands)
