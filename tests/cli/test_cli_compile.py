"""``quire compile`` and the variables that choose a form; building is tested elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from cli_invoke import invoke

from quire.cli.compiled_control import (
    COMPILED_VARIABLE,
    DIRECTORY_VARIABLE,
    choose_form,
    form_of_nodes,
)
from quire.compilation import CONTROL, CompiledFinder
from quire.compilation.library import LibraryRecord, library_name, record_name

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment says that libraries are; nothing is there."""
    monkeypatch.delenv(COMPILED_VARIABLE)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "compiled"))
    others = [finder for finder in sys.meta_path if not isinstance(finder, CompiledFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    return tmp_path / "compiled"


@pytest.fixture
def library(directory: Path) -> Path:
    """Looks like what was built from the present sources."""
    directory.mkdir(mode=0o700)
    key = CONTROL.key()
    path = directory / library_name(CONTROL, key)
    path.write_bytes(b"code")
    record = LibraryRecord(group="g", mypy="2.0", num_modules=3, size_bytes=4, build_s=1.0)
    (directory / record_name(CONTROL, key)).write_bytes(msgspec.json.encode(record))
    return path


def test_check_says_what_a_node_would_run(capsys: Capture, directory: Path) -> None:
    ran = invoke(capsys, "compile", "--check")
    assert ran.code == 1
    assert "control is interpreted: it was not compiled: run 'quire compile'" in ran.out


@pytest.mark.usefixtures("library")
def test_what_is_there_is_named_and_removed(capsys: Capture, directory: Path) -> None:
    ran = invoke(capsys, "compile", "--check")
    assert (ran.code, ran.out.split(":")[0]) == (0, "control is compiled")
    assert "3 modules" in ran.out
    assert "nodes that are started from now on" in invoke(capsys, "compile").out
    assert "removed 1 compiled form" in invoke(capsys, "compile", "--remove").out
    assert list(directory.glob("*.so")) == []
    assert invoke(capsys, "compile", "--check").code == 1


def test_a_library_of_everyone_is_told(capsys: Capture, library: Path) -> None:
    library.chmod(0o666)
    ran = invoke(capsys, "compile", "--check")
    assert ran.code == 1
    assert "chmod 600" in ran.out


def test_check_and_remove_exclude_one_another(capsys: Capture) -> None:
    assert invoke(capsys, "compile", "--check", "--remove").code == 2


@pytest.mark.usefixtures("library")
def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert form_of_nodes().is_compiled
    choose_form()
    assert isinstance(sys.meta_path[0], CompiledFinder)
    del sys.meta_path[0]
    monkeypatch.setenv(COMPILED_VARIABLE, "0")
    choose_form()
    assert not any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)
    assert str(form_of_nodes()) == "interpreted: QUIRE_COMPILED=0 says so"
