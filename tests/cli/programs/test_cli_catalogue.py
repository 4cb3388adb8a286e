"""``quire run --list``: what there is, and that nothing is started for it."""

from __future__ import annotations

import pytest
from cli_invoke import invoke

from quire.programs.library import LIBRARY, THEMES


def test_the_list_names_every_program_under_its_theme(capsys: pytest.CaptureFixture[str]) -> None:
    ran = invoke(capsys, "run", "--list")
    assert ran.code == 0
    words = ran.out.split()
    for theme, names in THEMES.items():
        behind = words[words.index(theme) + 1 :]  # a program may be called as its theme is
        assert set(names) <= set(behind)
    assert "Continue a prompt, greedily, and stream" in ran.out
    assert len(LIBRARY) > 1


def test_without_a_program_the_list_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    ran = invoke(capsys, "run")
    assert ran.code == 2
    assert "--list" in ran.err
