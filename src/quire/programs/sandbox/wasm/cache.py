"""What the sandbox has built, by what it was built from: the component, and compiled code.

Names cover the source's hash and the engine's version.
"""

from __future__ import annotations

from pathlib import Path

from quire.core.executable_cache import ExecutableCache


class BuildCache(ExecutableCache):
    """The sandbox's own directory of such files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "sandbox cache")
