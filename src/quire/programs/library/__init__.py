"""The shipped programs, each a short file that shows one technique; ``find`` gets one by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from quire.core.errors import InvalidArgument
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.library.json_output import json_output
from quire.programs.library.low_level_completion import low_level_completion
from quire.programs.library.parallel_generation import parallel_generation
from quire.programs.library.prefix_caching import prefix_caching
from quire.programs.library.react import react
from quire.programs.library.text_completion import text_completion

LIBRARY: Mapping[str, Inferlet] = MappingProxyType(
    {
        program.name: program
        for program in (
            json_output,
            low_level_completion,
            parallel_generation,
            prefix_caching,
            react,
            text_completion,
        )
    }
)
"""Every shipped program by name."""


def find(path_or_name: str) -> Inferlet:
    """The program of a Python file, or the shipped one of that name. A file's code runs.

    Raises:
        InvalidArgument: there is neither, or the file has no entry.
    """
    if path_or_name in LIBRARY:
        return LIBRARY[path_or_name]
    if path_or_name.endswith(".py") or "/" in path_or_name:
        return load_inferlet(Path(path_or_name))
    raise InvalidArgument(
        f"no program {path_or_name!r}: name a file ending in .py or one of {', '.join(LIBRARY)}"
    )


__all__ = ["LIBRARY", "find"]
