"""Loads a developer's file as a module, in its present state.

Python's own loader keeps byte code beside the file, and compares the file's size and the second in
which it was written: it would miss an edit within that second.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType


class _FreshLoader(SourceFileLoader):
    """Compiles the file each time, and writes no byte code."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def source_spec(name: str, path: Path) -> ModuleSpec | None:
    """The spec of the module ``name`` in the file ``path``; None if it is no Python file."""
    if path.suffix != ".py":
        return None
    return spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
