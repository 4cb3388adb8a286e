"""A folder on this machine as a program: its files, those of its wheels, and its requirements.

Owns which files of a folder are part of the program. Nothing of it runs here.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from quire.core.errors import InvalidArgument
from quire.core.program_files import MAIN, MAX_FILES, check_files
from quire.core.scratch import ScratchDirectory

REQUIREMENTS = "requirements.txt"
MAX_BYTES = 16 << 20
"""The most bytes of all files together; a node limits uploads by its own ``--max-upload-bytes``."""
_NATIVE = {".so", ".pyd", ".dylib", ".dll"}
_LEFT_OUT = {"__pycache__", "tests", "test", "node_modules"}
_PURE = "-none-any.whl"


def files_in(folder: Path) -> dict[str, str]:
    """Return the texts of the program in ``folder``, by path: its modules, and those of the wheels
    that lie there or that its ``requirements.txt`` names.

    Hidden files, ``__pycache__``, tests and files that are no Python are left out.

    Raises:
        InvalidArgument: it has no ``main.py``, a module hides one of the standard library, it is
            too large, or it needs code that is not Python.
    """
    if not (folder / MAIN).is_file():  # before a large folder is read that is no program
        raise InvalidArgument(
            f"{folder} has no {MAIN}: a folder that is a program needs {MAIN} with its @inferlet"
        )
    found = GatheredTexts(f"{folder}")
    for path in walk(folder):
        shown = path.relative_to(folder).as_posix()
        if path.suffix in _NATIVE:
            raise _native(shown)
        if path.suffix == ".py":
            found.add(shown, path.read_bytes())
        elif path.suffix == ".whl":
            _add_wheel(found, path)
    if (folder / REQUIREMENTS).is_file():
        with ScratchDirectory("wheels") as wheels:
            _download(folder, wheels.path)
            for wheel in sorted(wheels.path.glob("*.whl")):
                _add_wheel(found, wheel)
    check_files(found.texts)
    return found.texts


class GatheredTexts:
    """The texts of a program, bounded in number and size. ``where``: the name of the whole in
    errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._num_bytes = 0
        self.texts: dict[str, str] = {}

    @property
    def room(self) -> int:
        """Number of bytes that may still be added."""
        return MAX_BYTES - self._num_bytes

    def add(self, path: str, content: bytes) -> None:
        """Add a file. Raises ``InvalidArgument`` if there are too many, if it is no UTF-8, or if
        its path is there already."""
        self._num_bytes += len(content)
        if self._num_bytes > MAX_BYTES or len(self.texts) >= MAX_FILES:
            raise InvalidArgument(
                f"{self._where} is more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB: leave out "
                "what the program does not import"
            )
        if path in self.texts:
            raise InvalidArgument(f"{path} is in {self._where} twice: keep one of them")
        try:
            self.texts[path] = content.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise InvalidArgument(f"{path} is no UTF-8 text: {exc}") from exc


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files of the program, in order; links are not followed."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in _LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from walk(path)
        else:
            yield path


def _add_wheel(found: GatheredTexts, wheel: Path) -> None:
    check_pure(wheel)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename)
                if name.suffix in _NATIVE:
                    raise _native(f"{wheel.name}/{name}")
                if name.suffix != ".py" or name.parts[0].endswith((".dist-info", ".data")):
                    continue
                with archive.open(entry) as file:  # never more than fits, whatever size it states
                    found.add(entry.filename, file.read(found.room + 1))
    except (zipfile.BadZipFile, OSError, RuntimeError) as exc:
        raise InvalidArgument(f"{wheel.name} is no wheel that can be read: {exc}") from exc


def check_pure(wheel: Path) -> None:
    """Raise ``InvalidArgument`` if the wheel is for one platform."""
    if not wheel.name.endswith(_PURE):
        raise _native(wheel.name)


def _native(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what} is code of one platform, and a program is pure Python wherever it runs: take a "
        f"package whose wheel ends in {_PURE}"
    )


def _download(folder: Path, target: Path) -> None:
    """Download the wheels of what ``folder`` requires, and of what that requires, with the pip of
    this Python."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none",
        f"--find-links={folder}", f"--dest={target}", "--requirement", str(folder / REQUIREMENTS),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InvalidArgument(
            f"what {folder / REQUIREMENTS} names cannot be had as pure Python wheels: "
            f"{done.stderr.strip()[-600:]}"
        )
