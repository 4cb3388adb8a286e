"""Programs of several files as one text: their paths, their names, their modules."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from quire.core.errors import InvalidArgument
from quire.core.program_files import (
    MARK,
    MAX_FILES,
    check_files,
    files_of,
    is_package,
    module_parts,
    package_code,
)
from quire.programs.package import PackageModules

FILES = {
    "main.py": "import pkg_one",
    "pkg_one.py": "from pkg_two.deep import WORD",
    "pkg_two/deep/__init__.py": "WORD = 'found'\n\ndef fail():\n    raise ValueError(WORD)\n",
}


@pytest.fixture
def imported() -> Iterator[PackageModules]:
    finder = PackageModules(FILES, "program.py")
    sys.meta_path.append(finder)  # type: ignore[arg-type]
    yield finder
    sys.meta_path.remove(finder)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if name.startswith("pkg_")]:
        del sys.modules[name]


def test_files_travel_as_one_text() -> None:
    text = package_code(FILES).decode()
    assert is_package(text)
    assert not is_package(FILES["main.py"])
    assert files_of(text) == FILES
    assert package_code(dict(reversed(FILES.items()))).decode() == text, "one content, one digest"


def test_modules_and_packages_are_imported_from_their_texts(imported: PackageModules) -> None:
    assert import_module("pkg_one").WORD == "found"
    deep = import_module("pkg_two.deep")
    assert deep.__file__ == "program.py/pkg_two/deep/__init__.py"
    with pytest.raises(ValueError, match="found") as failed:
        deep.fail()
    assert str(failed.traceback[-1].path) == deep.__file__
    assert imported.find_spec("main") is None
    assert imported.find_spec("pkg_two.other") is None


@pytest.mark.parametrize(
    "path",
    ["", "a", "/a.py", "../a.py", "a/../b.py", "a//b.py", "a\\b.py", "a b.py", "class.py", "1.py",
     "a.b.py", ".py", "a.py/", f"{'a' * 300}.py", "a\0.py"],
)  # fmt: skip
def test_a_path_is_the_name_of_a_module(path: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a module path"):
        module_parts(path)


@pytest.mark.parametrize("path", ["json.py", "statistics/__init__.py", "quire/a.py", "app.py"])
def test_a_name_that_programs_have_already_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="would hide the module"):
        check_files({"main.py": "", path: ""})


def test_there_is_a_main_module() -> None:
    with pytest.raises(InvalidArgument, match=r"needs main.py with its @inferlet; it has a.py"):
        check_files({"a.py": ""})
    with pytest.raises(InvalidArgument, match="would hide the module 'main'"):
        check_files({"main.py": "", "main/__init__.py": ""})


def test_the_number_of_files_is_bounded() -> None:
    files = {"main.py": "", **{f"m{index}.py": "" for index in range(MAX_FILES)}}
    with pytest.raises(InvalidArgument, match="1025 files"):
        check_files(files)


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"main.py": 1}), "[" * 100_000])
def test_what_is_no_such_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="the program's files"):
        files_of(MARK + text)
