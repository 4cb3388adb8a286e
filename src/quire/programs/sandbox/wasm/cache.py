"""The sandbox's build results, by their inputs: the component, and compiled code.

File names include the source's hash and the engine's version.
"""

from __future__ import annotations

from pathlib import Path

from quire.core.executable_cache import ExecutableCache


class BuildCache(ExecutableCache):
    """The sandbox's own cache directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "sandbox cache")
