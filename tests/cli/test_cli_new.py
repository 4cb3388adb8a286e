"""``quire new``: what it writes is good, and it never writes over anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from cli_invoke import invoke

from quire.cli.new import TemplateName, scaffold
from quire.core.errors import InvalidArgument
from quire.programs.inferlet import load_inferlet

ROOT = Path(__file__).parents[2]
TEMPLATES: tuple[TemplateName, ...] = get_args(TemplateName)


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python without plugins of pytest: a program's tests need none, and they take seconds to
    import."""
    alone = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_new_programs_own_test_passes(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = invoke(capsys, "new", "my_try", "--template", template, "--directory", str(tmp_path))
    assert ran.code == 0, ran.err
    folder = tmp_path / "my_try"
    names = ["README.md", "my_try.py", "test_my_try.py"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert load_inferlet(folder / "my_try.py").name == "my_try"
    tested = _python(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_written_is_in_the_projects_own_style(
    template: TemplateName, tmp_path: Path
) -> None:
    for file, text in scaffold("my_try", template).items():
        assert "$" not in text
        (tmp_path / file).write_text(text, encoding="utf-8")
    for check in (("check",), ("format", "--check")):
        config = ("--config", str(ROOT / "pyproject.toml"))
        ran = _python(tmp_path, "ruff", *check, *config, "--no-cache", ".")
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_test_of_a_template_can_fail(tmp_path: Path) -> None:
    """A program that says nothing is noticed."""
    for file, text in scaffold("my_try", "completion").items():
        text = text.replace("parts.append(text)", "pass")
        (tmp_path / file).write_text(text, encoding="utf-8")
    ran = _python(tmp_path, "pytest", "-q", "-p", "no:cacheprovider")
    assert ran.returncode == 1, ran.stdout


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My_Agent", "lower-case"),
        ("1st", "lower-case"),
        ("my-agent", "lower-case"),
        ("../up", "lower-case"),
        ("", "lower-case"),
        ("añb", "lower-case"),
        ("a" * 65, "64 characters"),
        ("while", "keyword"),
        ("match", "keyword"),
        ("test_it", "pytest"),
        ("react", "library"),
        ("json", "another module"),
        ("numpy", "another module"),
        ("prompts", "uses that name"),
        ("parts", "uses that name"),
    ],
)
def test_a_bad_name_is_refused(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = invoke(capsys, "new", name, "--directory", str(tmp_path))
    assert ran.code == 2
    assert why in ran.err
    assert not list(tmp_path.iterdir())


def test_an_unknown_template_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = invoke(capsys, "new", "mine", "--template", "robot", "--directory", str(tmp_path))
    assert ran.code == 2
    assert "completion" in ran.err


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_nothing_is_written_over(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "mine"
    if kind == "folder":
        there.mkdir()
        (there / "mine.py").write_text("precious")
    else:
        there.write_text("precious")
    ran = invoke(capsys, "new", "mine", "--directory", str(tmp_path))
    assert ran.code == 2
    assert "exists already" in ran.err
    kept = there / "mine.py" if kind == "folder" else there
    assert kept.read_text() == "precious"
    assert list(tmp_path.rglob("*.md")) == []


def test_a_place_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    ran = invoke(capsys, "new", "mine", "--directory", str(tmp_path / "file" / "below"))
    assert ran.code == 2
    assert "cannot be made" in ran.err


def test_the_templates_know_their_own_names() -> None:
    with pytest.raises(InvalidArgument, match="'agent' uses that name"):
        scaffold("get_weather", "agent")
    assert "get_weather.py" in scaffold("get_weather", "completion")
