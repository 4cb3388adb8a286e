"""The results of a build, its requirements, and its errors."""

from __future__ import annotations

import fcntl
import sysconfig
from pathlib import Path

import pytest

from quire.compilation import CONTROL, CompiledLibrary, Scope, building, find_library
from quire.compilation.building import build, problem_of_machine
from quire.compilation.toolchain import compile_all, link
from quire.compilation.translate import Translation
from quire.core.errors import ConfigError


def test_a_build_leaves_a_library_and_its_record(built: CompiledLibrary) -> None:
    assert built.path.stat().st_mode & 0o777 == 0o600
    assert built.record.num_modules == 3
    assert built.record.size_bytes == built.path.stat().st_size
    assert not list(built.path.parent.glob(".building-*"))


def test_an_existing_library_is_not_built_again(
    scope: Scope, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.compilation.building.find_spec", lambda name: None)
    stages: list[str] = []
    found = build(scope, directory, lambda stage, fraction: stages.append(stage))
    assert found == find_library(scope, directory)
    assert stages == []


def test_one_process_builds_and_a_failure_leaves_nothing(scope: Scope, tmp_path: Path) -> None:
    (scope.folder / "inner" / "summing.py").write_text("number: int = 'text'\n", encoding="utf-8")
    directory = tmp_path / "compiled"
    refused: list[bool] = []

    def progress(stage: str, fraction: float) -> None:
        with (directory / "inner.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(True)

    with pytest.raises(ConfigError, match=r"cannot translate tiny\.inner(.|\n)*Incompatible types"):
        build(scope, directory, progress)
    assert refused == [True]
    assert [path.name for path in directory.iterdir()] == ["inner.lock"]


def without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces mypyc and the compiler by no-ops: the linked file is not a library."""
    nothing = Translation(group="g", mypy="2", sources=[], include_folders=[], arguments=[])
    monkeypatch.setattr(building, "_translate", lambda scope, work: nothing)
    monkeypatch.setattr(building, "compile_all", lambda *arguments: [])
    monkeypatch.setattr(building, "link", lambda objects, path: path.write_bytes(b"nothing"))


def test_a_library_that_cannot_be_loaded_is_not_kept(
    scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tools(monkeypatch)
    with pytest.raises(ConfigError, match=r"cannot be loaded: not used: .*file too short"):
        build(scope, tmp_path / "compiled")
    assert not list((tmp_path / "compiled").glob("*.so"))


def test_only_some_libraries_are_kept(
    scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tools(monkeypatch)
    monkeypatch.setattr(building, "_check_loads", lambda scope, built: None)
    for edit in range(building.KEPT_LIBRARIES + 2):
        (scope.folder / "inner" / "summing.py").write_text(f"{edit}\n", encoding="utf-8")
        newest = build(scope, tmp_path / "compiled")
    kept = list((tmp_path / "compiled").glob("inner-*.so"))
    assert len(kept) == len(list((tmp_path / "compiled").glob("record-*"))) == 4
    assert newest.path in kept


def test_without_mypyc_the_extra_is_named(
    scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.compilation.building.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'quire\[compile\]'"):
        build(scope, tmp_path / "compiled")


def test_without_a_compiler_or_headers_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem_of_machine() is None
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert "python3-dev" in (problem_of_machine() or "")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "apt install gcc" in (problem_of_machine() or "")


def test_the_compilers_words_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("int f(void) { return missing; }\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"failed on wrong\.c(.|\n)*missing"):
        compile_all([source], tmp_path / "objects", [], [], lambda fraction: None)
    with pytest.raises(ConfigError, match=r"failed on made\.so"):
        link([tmp_path / "nowhere.o"], tmp_path / "made.so")


def test_all_of_control_is_compiled() -> None:
    modules = CONTROL.modules()
    assert "quire.control.controller" in modules
    assert "quire.control.scheduler.completion" in modules
    assert not [name for name in modules if name.endswith("__init__")]
    assert "quire.simulation.light_engine" in modules
    assert all(map(CONTROL.may_have, modules))
    assert not any(map(CONTROL.may_have, ["quire.simulation.profile", "quire.core.batch"]))
    assert all((CONTROL.folder / path).is_file() for path in modules.values())
    names = [name.rpartition(".")[2] for name in modules]
    assert len(set(names)) == len(names), "Python finds a module in the library by its last name"
