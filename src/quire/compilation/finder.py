"""Imports compiled modules in place of their sources, all of them or none.

Owns that decision, which is made once, at the first import of one of them. Compiled modules access
one another as C structures, so compiled and interpreted modules cannot be mixed. If the compiled
modules cannot be used, Python's own finders import the sources.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from quire.compilation.library import CompiledLibrary, default_directory, find_library
from quire.compilation.sources import CONTROL, Scope
from quire.core.errors import ConfigError

logger = logging.getLogger(__name__)

IMPORTED_BEFORE = "a part of it was imported before 'use_compiled'"


class CompiledFinder(MetaPathFinder):
    """A finder in ``sys.meta_path``, before the finder of sources."""

    def __init__(self, scope: Scope, directory: Path) -> None:
        self._scope = scope
        self._directory = directory
        self._library: CompiledLibrary | None = None
        self._modules: frozenset[str] = frozenset()
        self.refusal: str | None = None
        """Why Python runs the sources; None before the decision, or if it runs compiled modules."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not self._scope.may_have(fullname):
            return None
        if self._library is None and self.refusal is None:
            self.refusal = self._decide()
        if self._library is None or fullname not in self._modules:
            return None
        return _spec(fullname, self._library.path)

    def _decide(self) -> str | None:
        """Load the library's shared part; returns why it cannot be used, or None."""
        modules = frozenset(self._scope.modules())
        if not modules.isdisjoint(sys.modules):
            return IMPORTED_BEFORE
        try:
            found = find_library(self._scope, self._directory)
            if isinstance(found, str):
                return found
            _load_shared(found)
        except (ConfigError, ImportError) as exc:
            logger.warning("%s runs as Python: %s", self._scope.prefix.rstrip("."), exc)
            return str(exc)
        self._library, self._modules = found, modules
        return None


def _spec(name: str, path: Path) -> ModuleSpec:
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
    assert spec is not None
    return spec


def _load_shared(library: CompiledLibrary) -> None:
    """Load the shared part, which the modules look up in ``sys.modules``; runs no module's code."""
    name = library.record.group
    spec = _spec(name, library.path)
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def use_compiled(directory: Path | None = None, scope: Scope = CONTROL) -> CompiledFinder:
    """Import the compiled modules of ``scope`` from now on, if a build fits.

    ``directory``: where ``quire compile`` has put them; None: its default directory.
    """
    finder = CompiledFinder(scope, directory or default_directory())
    sys.meta_path.insert(0, finder)
    return finder


def in_use(scope: Scope = CONTROL) -> bool | None:
    """Whether this process runs compiled modules of ``scope``; ``None`` before any was imported."""
    for name, module in sys.modules.items():
        if name.startswith(scope.prefix) and not hasattr(module, "__path__"):
            return isinstance(getattr(module, "__loader__", None), ExtensionFileLoader)
    return None
