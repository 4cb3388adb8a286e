"""A compiled package is used only if it fits its sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_package import use

from quire.compilation import Scope, find_library, remove_libraries
from quire.compilation.finder import IMPORTED_BEFORE
from quire.compilation.library import CHANGED, NEVER_BUILT
from quire.core.errors import ConfigError


def library_of(directory: Path) -> Path:
    (path,) = directory.glob("*.so")
    return path


def test_a_library_that_fits_is_used_and_behaves_the_same(scope: Scope, directory: Path) -> None:
    used = use(scope, directory)
    assert used.facts == {
        "unknown": None,
        "in_use": True,
        "refusal": None,
        "total": 5,
        "doubled": 8,
        "files": [str(library_of(directory))] * 3 + [str(scope.folder / "outer" / "leaving.py")],
    }
    assert used.warning == ""


@pytest.mark.parametrize(
    "name", ["inner/counting.py", "inner/__init__.py", "base/limits.py", "outer/leaving.py"]
)
def test_an_edited_source_is_run_by_python(scope: Scope, directory: Path, name: str) -> None:
    path = scope.folder / name
    path.write_text(path.read_text(encoding="utf-8")[:-1] + " ", encoding="utf-8")
    used = use(scope, directory)
    assert used.facts["refusal"] == CHANGED
    assert used.facts["in_use"] is False
    assert used.facts["total"] == 5
    assert used.facts["files"][0] == str(scope.folder / "inner" / "counting.py")
    assert used.warning == ""


def test_with_a_new_or_missing_source_python_runs_the_sources(
    scope: Scope, directory: Path
) -> None:
    new = scope.folder / "base" / "more.py"
    new.touch()
    assert find_library(scope, directory) == CHANGED
    new.unlink()
    assert not isinstance(find_library(scope, directory), str)
    (scope.folder / "inner" / "summing.py").unlink()
    assert find_library(scope, directory) == CHANGED


def test_the_interpreter_is_part_of_the_name(
    scope: Scope, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.version", "another build")
    assert find_library(scope, directory) == CHANGED


def test_what_is_compiled_is_part_of_the_name(scope: Scope, directory: Path) -> None:
    assert find_library(replace(scope, beside=()), directory) == CHANGED


def test_without_a_library_python_runs_silently(scope: Scope, tmp_path: Path) -> None:
    used = use(scope, tmp_path / "nothing")
    assert (used.facts["refusal"], used.facts["in_use"]) == (NEVER_BUILT, False)
    assert used.warning == ""
    assert not (tmp_path / "nothing").exists()


def test_a_library_that_others_may_write_is_not_run(scope: Scope, directory: Path) -> None:
    library_of(directory).chmod(0o666)
    used = use(scope, directory)
    assert used.facts["in_use"] is False
    assert "chmod 600" in used.warning
    library_of(directory).chmod(0o600)
    directory.chmod(0o777)
    used = use(scope, directory)
    assert used.facts["in_use"] is False
    assert "chmod 700" in used.warning


def test_a_file_that_was_cut_is_not_loaded(scope: Scope, directory: Path) -> None:
    path = library_of(directory)
    path.write_bytes(path.read_bytes()[:1000])
    used = use(scope, directory)
    assert used.facts["in_use"] is False
    assert "has 1000 bytes" in used.warning
    assert "quire compile --remove" in used.warning


def test_a_file_that_cannot_be_loaded_is_told(scope: Scope, directory: Path) -> None:
    path = library_of(directory)
    path.write_bytes(bytes(path.stat().st_size))
    used = use(scope, directory)
    assert (used.facts["in_use"], used.facts["total"]) == (False, 5)
    assert "tiny.inner runs as Python" in used.warning


@pytest.mark.parametrize("content", [b"{}", b'{"group": "\xff"}'])
def test_a_record_that_is_no_record_is_told(content: bytes, scope: Scope, directory: Path) -> None:
    (record,) = directory.glob("*.json")
    record.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        find_library(scope, directory)


def test_both_forms_are_never_mixed(scope: Scope, directory: Path) -> None:
    used = use(scope, directory, before="tiny.inner.counting")
    assert used.facts["refusal"] == IMPORTED_BEFORE
    assert used.facts["files"][1] == str(scope.folder / "inner" / "summing.py")


def test_libraries_are_forgotten(scope: Scope, directory: Path) -> None:
    assert remove_libraries(scope, directory) == 1
    assert list(directory.iterdir()) == []
    assert remove_libraries(scope, directory) == 0
    assert remove_libraries(scope, directory / "nowhere") == 0
