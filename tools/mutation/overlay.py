"""Makes a copy of the package tree in which one module has a fault.

The tree consists of links to the real files, which are never written. It comes first on the path of
the tests and of the processes that they start.
"""

from __future__ import annotations

import compileall
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.mutation.targets import SOURCE


def _link(source: str, target: str) -> None:
    """Byte code is copied: what is current need not be compiled again."""
    if source.endswith(".pyc"):
        shutil.copy2(source, target)
    else:
        os.symlink(source, target)


class Overlay:
    """A context manager that removes the tree at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(SOURCE / "quire", root / "quire", copy_function=_link)
        compileall.compile_dir(root, quiet=2)

    def __enter__(self) -> Overlay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @contextmanager
    def fault(self, path: str, source: str) -> Iterator[None]:
        """Within the body, ``path`` (below ``src``) has this ``source``."""
        file = self.root / path
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()
        file.unlink()
        file.write_text(source, encoding="utf-8")
        try:
            yield
        finally:
            file.unlink()
            file.symlink_to(SOURCE / path)
