"""The control core as machine code: built once by mypyc, used wherever it fits the sources.

The sources stay what is read, tested and debugged; what is built from them is kept in a cache under
a name that covers them, so it is never older than they are. ``use_compiled`` comes before the first
import of what it is for. Knows modules by their names alone and imports none of them. ``building``
is imported by those who build: a node that starts does without it.
"""

from quire.compilation.finder import CompiledFinder, in_use, use_compiled
from quire.compilation.library import Library, default_directory, find_library, remove_libraries
from quire.compilation.sources import CONTROL, Scope

__all__ = [
    "CONTROL",
    "CompiledFinder",
    "Library",
    "Scope",
    "default_directory",
    "find_library",
    "in_use",
    "remove_libraries",
    "use_compiled",
]
