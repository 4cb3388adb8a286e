"""What of a folder is a program, and what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from quire.client.folder import MAX_BYTES, files_in
from quire.client.requests import launch_body, read_code
from quire.core.errors import InvalidArgument
from quire.core.program_files import files_of

ENTRY = "from quire.programs.sdk import inferlet\n{}\n\n@inferlet('{}')\nasync def main(api): {}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, "main.py", ENTRY.format("from fld_tools.words import WORD", "it", "return WORD"))
    put(tmp_path, "fld_tools/words.py", "WORD = 'found'")
    return tmp_path


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def put_wheel(folder: Path, name: str, **files: str) -> None:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(path.replace("__", "/").replace("-", "."), text)
        project, version = name.split("-")[:2]
        archive.writestr(
            f"{project}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n",
        )
        archive.writestr(
            f"{project}-{version}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{project}-{version}.dist-info/RECORD", "")


def test_a_program_is_its_python_files(folder: Path) -> None:
    for left_out in (".hidden.py", "__pycache__/a.py", "tests/test_a.py", ".venv/b.py", "env/c.py"):
        put(folder, left_out, "wrong")
    put(folder, "env/pyvenv.cfg", "")
    put(folder, "README.md", "no module")
    (folder / "linked.py").symlink_to(folder / "main.py")
    assert set(files_in(folder)) == {"main.py", "fld_tools/words.py"}


def test_pure_wheels_are_part_of_it(folder: Path) -> None:
    put_wheel(folder, "fldpkg-1.0-py3-none-any.whl", **{"fldpkg__core-py": "A = 1"})
    files = files_in(folder)
    assert files["fldpkg/core.py"] == "A = 1"
    assert not any("dist-info" in path for path in files)


def test_requirements_are_resolved_to_pure_wheels(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pip, which finds wheels that lie in a folder named there and asks no index here."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheels = folder.parent / f"{folder.name}-wheels"
    wheels.mkdir()
    put_wheel(wheels, "fldneed-1.0-py3-none-any.whl", **{"fldneed__core-py": "B = 2"})
    put(folder, "requirements.txt", f"--find-links {wheels}\nfldneed==1.0\n")
    assert files_in(folder)["fldneed/core.py"] == "B = 2"
    put(folder, "requirements.txt", "fldmissing\n")
    with pytest.raises(InvalidArgument, match="cannot be had as pure Python wheels"):
        files_in(folder)


@pytest.mark.parametrize("name", ["fast.so", "fld_tools/fast.pyd", "a-1-cp311-cp311-linux.whl"])
def test_code_of_one_platform_is_refused(folder: Path, name: str) -> None:
    put(folder, name, "")
    with pytest.raises(InvalidArgument, match="pure Python"):
        files_in(folder)


def test_a_wheel_with_an_extension_is_refused(folder: Path) -> None:
    put_wheel(folder, "fldpkg-1.0-py3-none-any.whl", **{"fldpkg__fast-so": ""})
    with pytest.raises(InvalidArgument, match=r"fldpkg-1.0-py3-none-any.whl/fldpkg/fast.so"):
        files_in(folder)


def test_a_wheel_that_grows_is_read_to_the_bound_alone(folder: Path) -> None:
    bomb = "#" * (MAX_BYTES + 1024)
    put_wheel(folder, "fldpkg-1.0-py3-none-any.whl", **{"fldpkg__big-py": bomb})
    with pytest.raises(InvalidArgument, match="16 MiB"):
        files_in(folder)


def test_a_wheel_cannot_name_a_place_outside(folder: Path) -> None:
    put_wheel(folder, "fldpkg-1.0-py3-none-any.whl", **{"..__outside-py": ""})
    with pytest.raises(InvalidArgument, match="not a module path"):
        files_in(folder)


def test_what_is_no_wheel_or_text_is_refused(folder: Path) -> None:
    put(folder, "fldpkg-1.0-py3-none-any.whl", "no archive")
    with pytest.raises(InvalidArgument, match="no wheel that can be read"):
        files_in(folder)
    (folder / "fldpkg-1.0-py3-none-any.whl").unlink()
    (folder / "fld_latin.py").write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match=r"fld_latin.py is no UTF-8"):
        files_in(folder)


def test_a_module_is_there_once(folder: Path) -> None:
    put_wheel(folder, "fld_tools-1.0-py3-none-any.whl", **{"fld_tools__words-py": ""})
    with pytest.raises(InvalidArgument, match=r"fld_tools/words.py is in .* twice"):
        files_in(folder)


def test_a_folder_without_a_main_module_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.py", "")
    with pytest.raises(InvalidArgument, match=r"needs main.py"):
        files_in(tmp_path)


def test_a_folder_without_a_main_module_is_not_read(tmp_path: Path) -> None:
    """Whatever lies there: a home directory may have been named by mistake."""
    put(tmp_path, "not-a-module.py", "")
    put(tmp_path, "fast.so", "")
    with pytest.raises(InvalidArgument, match=r"needs main.py"):
        files_in(tmp_path)


def test_a_folder_is_sent_as_one_text(folder: Path) -> None:
    body = launch_body(None, [], {"code": folder})
    assert dict(files_of(body["source"])) == files_in(folder)


def test_a_path_with_nothing_is_refused_with_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file or directory; name a Python file"):
        read_code(tmp_path / "absent")
