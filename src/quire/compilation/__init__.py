"""The control core as machine code: built once by mypyc, used wherever it fits the sources.

Developers read, test and debug the sources. Builds are kept in a cache under a name that is derived
from the sources, so a build is never out of date. ``use_compiled`` must be called before the first
import of the modules in question. Knows modules by name only and imports none of them. Only code
that builds imports ``building``; a node that starts does not need it.
"""

from quire.compilation.finder import CompiledFinder, in_use, use_compiled
from quire.compilation.library import (
    CompiledLibrary,
    default_directory,
    find_library,
    remove_libraries,
)
from quire.compilation.sources import CONTROL, Scope

__all__ = [
    "CONTROL",
    "CompiledFinder",
    "CompiledLibrary",
    "Scope",
    "default_directory",
    "find_library",
    "in_use",
    "remove_libraries",
    "use_compiled",
]
