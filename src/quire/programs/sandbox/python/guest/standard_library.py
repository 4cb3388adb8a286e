"""The standard library of a guest: the most used modules are imported already, the others are in
the memory image as compressed code and are imported on demand.

A guest has no file system, so nothing can be read later. The code is gathered while the component
is built, when the interpreter's own files can still be read.
"""

from __future__ import annotations

import marshal
import sys
import zlib
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

_LEFT_OUT = frozenset([
    "_aix_support", "_android_support", "_apple_support", "_ios_support", "_osx_support",
    "_pyrepl", "antigravity", "bdb", "cProfile",
    "compileall", "ctypes", "curses", "dbm", "ensurepip", "fcntl", "ftplib", "getpass", "grp",
    "idlelib", "imaplib", "lib2to3", "mailbox", "mmap", "msilib", "msvcrt", "multiprocessing",
    "netrc", "nt", "ossaudiodev", "pdb", "pip", "poplib", "profile", "pty", "pwd", "pydoc",
    "pydoc_data", "readline", "resource", "rlcompleter", "smtplib", "socketserver", "spwd",
    "ssl", "syslog", "termios", "test", "this", "tkinter", "tty", "turtle",
    "turtledemo", "venv", "webbrowser", "winreg", "winsound", "wsgiref", "xmlrpc",
])  # fmt: skip
"""Modules that need an operating system, a terminal, sockets or processes, and those that programs
do not use."""
_SKIPPED_FOLDERS = frozenset({"__pycache__", "lib-dynload", "site-packages", "test", "tests"})


class _Kept(NamedTuple):
    is_package: bool
    code: bytes


class StandardLibrary:
    """A finder and loader of the modules under ``folder`` that are not imported yet."""

    def __init__(self, folder: Path) -> None:
        self._kept = dict(_gathered(folder))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._kept)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a kept module. Raises ``ModuleNotFoundError`` for one that a sandbox cannot have."""
        kept = self._kept.get(name)
        if kept is not None:
            return spec_from_loader(name, self, is_package=kept.is_package)  # type: ignore[arg-type]
        top = name.partition(".")[0]
        if top in _LEFT_OUT or (top in sys.stdlib_module_names and top not in sys.modules):
            raise ModuleNotFoundError(
                f"the sandbox has no module {name!r}: it needs an operating system, sockets, "
                "processes or C libraries, which sandboxed programs do not have",
                name=name,
            )
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None: the default module is used."""

    def exec_module(self, module: ModuleType) -> None:
        kept = self._kept[module.__name__]
        exec(marshal.loads(zlib.decompress(kept.code)), vars(module))


def interpreter_folder() -> Path:
    """The folder of the interpreter's own modules, while the component is built."""
    return next(Path(entry) for entry in sys.path if (Path(entry) / "abc.py").is_file())


def _gathered(folder: Path) -> Iterator[tuple[str, _Kept]]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        if parts[0] in _LEFT_OUT or _SKIPPED_FOLDERS.intersection(parts) or name in sys.modules:
            continue
        if "__main__" in parts:
            continue
        code = compile(path.read_bytes(), f"<{name}>", "exec", dont_inherit=True)
        yield name, _Kept(is_package, zlib.compress(marshal.dumps(code), 6))
