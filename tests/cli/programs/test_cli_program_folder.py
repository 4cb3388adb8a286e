"""A folder as a trusted program, which runs in this process."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from quire.cli.programs.folder import load_folder
from quire.core.errors import InvalidArgument, ProgramFailed
from quire.testing import LocalNode

ENTRY = "from quire.programs.sdk import inferlet\n{}\n\n@inferlet('{}')\nasync def main(api): {}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    entry = ENTRY.format("from fld_tools.words import WORD", "it", "return WORD")
    (tmp_path / "main.py").write_text(entry, encoding="utf-8")
    (tmp_path / "fld_tools").mkdir()
    (tmp_path / "fld_tools" / "words.py").write_text("WORD = 'found'", encoding="utf-8")
    return tmp_path


@pytest.fixture
def import_state() -> Iterator[None]:
    import_module("quire.programs.sdk")  # stays: numpy is loaded once per process
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.usefixtures("import_state")
def test_a_folder_runs_natively(folder: Path) -> None:
    with zipfile.ZipFile(folder / "fldpkg-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("fldpkg.py", "A = 1")
    imports = "from fldpkg import A\nimport fld_tools.words"
    (folder / "main.py").write_text(ENTRY.format(imports, "it", "return A"), encoding="utf-8")
    program = load_folder(folder)
    assert program.name == "it"
    assert sys.modules["fld_tools.words"].WORD == "found"


@pytest.mark.usefixtures("import_state")
async def test_an_error_names_the_lines_of_all_its_files(folder: Path) -> None:
    (folder / "fld_tools" / "words.py").write_text("def half(x):\n    return x / 0\n")
    entry = ENTRY.format("from fld_tools.words import half", "it", "return half(1)")
    (folder / "main.py").write_text(entry, encoding="utf-8")
    async with LocalNode() as node:
        with pytest.raises(ProgramFailed) as caught:
            await node.run(load_folder(folder))
    assert f'File "{folder}/main.py", line 5, in main' in caught.value.message
    assert f'File "{folder}/fld_tools/words.py", line 2, in half' in caught.value.message
    assert "quire/programs" not in caught.value.message


@pytest.mark.usefixtures("import_state")
def test_so_does_one_of_an_import(folder: Path) -> None:
    (folder / "fld_tools" / "words.py").write_text("WORD = 1 / 0\n")
    with pytest.raises(InvalidArgument, match=r'fld_tools/words\.py", line 1, in <module>'):
        load_folder(folder)


@pytest.mark.usefixtures("import_state")
def test_two_native_programs_do_not_share_a_module_by_name(folder: Path, tmp_path: Path) -> None:
    load_folder(folder)
    with pytest.raises(InvalidArgument, match="another one of this name is loaded already"):
        load_folder(folder)


def test_a_folder_without_a_main_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    with pytest.raises(InvalidArgument, match=r"needs main.py"):
        load_folder(tmp_path)
