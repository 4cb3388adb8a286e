"""Lists which modules are compiled, and makes the cache key of their present sources."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

OPTIMISATION = "1"
"""The C compiler's optimisation level. The remaining cost is calls into Python's own objects, which
higher levels do not reduce, while they compile much longer."""

_FORMAT = "1"
"""Raised when the way changes in which a library is built from its sources or loaded."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The modules that form one library.

    ``folder`` is that of ``package``. All modules of its subpackage ``compiled`` are compiled,
    except ``__init__``, and so are the files ``beside`` of other subpackages. They may import from
    the packages ``covered``, whose types are compiled in: a change there requires another library.
    """

    package: str
    folder: Path
    compiled: str
    covered: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        return f"{self.package}.{self.compiled}."

    def modules(self) -> dict[str, Path]:
        """The modules to compile by full name, with their source files relative to ``folder``."""
        paths = [path for path in self._below(self.compiled) if path.name != "__init__.py"]
        paths += map(Path, self.beside)
        return {self._name(path): path for path in paths}

    def may_have(self, module: str) -> bool:
        """Whether it can be one of ``modules``; reads no folder."""
        if module.startswith(self.prefix):
            return True
        return module.startswith(f"{self.package}.") and any(
            module == self._name(Path(path)) for path in self.beside
        )

    def _name(self, path: Path) -> str:
        return ".".join((self.package, *path.with_suffix("").parts))

    def files(self) -> list[Path]:
        """Every source file that the library depends on, relative to ``folder``."""
        return [path for part in (self.compiled, *self.covered) for path in self._below(part)]

    def key(self) -> str:
        """The name of the library for these sources, this interpreter and this kind of machine."""
        digest = hashlib.sha256()
        machine = os.uname().machine if hasattr(os, "uname") else sys.platform
        for fact in (
            _FORMAT,
            OPTIMISATION,
            sys.platform,
            machine,
            sys.version,
            *EXTENSION_SUFFIXES,
            *self.beside,
        ):
            digest.update(f"{fact}\0".encode())
        for path in self.files():
            content = (self.folder / path).read_bytes()
            digest.update(f"{path.as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()[:32]

    def _below(self, part: str) -> list[Path]:
        return sorted(path.relative_to(self.folder) for path in (self.folder / part).rglob("*.py"))


CONTROL = Scope(
    "quire",
    Path(__file__).parents[1],
    "control",
    ("core", "simulation"),
    beside=(
        "core/ready_command.py",
        "simulation/light_engine.py",
        "simulation/light_rows.py",
        "simulation/message_times.py",
        "simulation/overhead.py",
        "simulation/player.py",
        "simulation/shell.py",
        "simulation/simulation.py",
        "simulation/step_cost.py",
        "simulation/trial.py",
        "simulation/work.py",
    ),
)
"""The scope of control, with what its policies see and the modules of the simulator that run for
each of its messages."""
