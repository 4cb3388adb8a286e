"""The importer that a guest uses for a program of several files.

Nothing is unpacked: a text is stored as it is, and a path is only used as a module name.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import CodeType, ModuleType

from quire.core.program_files import MAIN, Files, module_parts

_INIT = "__init__"


class PackageModules:
    """A finder and loader of the modules in ``files``, except the main one. ``root``: the name of
    the program's file; module file names begin with it, so that tracebacks can tell them from other
    code."""

    def __init__(self, files: Files, root: str) -> None:
        self._root = root
        self._texts: dict[str, tuple[str, str]] = {}
        self._packages: set[str] = set()
        for path, text in files.items():
            parts = module_parts(path)
            if path == MAIN:
                continue
            name = ".".join(parts[:-1] if parts[-1] == _INIT else parts)
            if parts[-1] == _INIT:
                self._packages.add(name)
            self._texts[name] = (path, text)
            for end in range(1, len(parts)):  # folders without an __init__.py are packages too
                self._packages.add(".".join(parts[:end]))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._texts and name not in self._packages:
            return None
        is_package = name in self._packages
        return spec_from_loader(name, self, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None: the default module is used."""

    def exec_module(self, module: ModuleType) -> None:
        if (found := self._texts.get(module.__name__)) is not None:
            path, text = found
            module.__file__ = f"{self._root}/{path}"
            exec(compiled(text, module.__file__), vars(module))


def compiled(text: str, file: str) -> CodeType:
    """The code of ``text``, whose lines are registered for tracebacks. Annotations are evaluated,
    unless the text itself has a ``__future__`` import."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec", dont_inherit=True)
