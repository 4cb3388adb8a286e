"""Decides from the environment whether this command runs control compiled or as Python, and reports
it.

The choice is made before a command's own modules are imported, so there are environment variables
for it and no options.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quire.compilation import (
    CONTROL,
    CompiledLibrary,
    default_directory,
    find_library,
    use_compiled,
)
from quire.core.errors import ConfigError

COMPILED_VARIABLE = "QUIRE_COMPILED"
DIRECTORY_VARIABLE = "QUIRE_COMPILED_DIR"

_REMEDY = "run 'quire compile', and calls cost the node less processor time"


def choose_form() -> None:
    """Use compiled modules for all later imports, unless the environment forbids it."""
    if not _is_off():
        use_compiled(compiled_directory())


def compiled_directory() -> Path:
    named = os.environ.get(DIRECTORY_VARIABLE)
    return Path(named).expanduser() if named else default_directory()


@dataclass(frozen=True, slots=True)
class Form:
    """The form of control. ``reason``: which compiled code is used, or why none is."""

    is_compiled: bool
    reason: str

    def __str__(self) -> str:
        return f"{'compiled' if self.is_compiled else 'interpreted'}: {self.reason}"


def form_of_nodes(directory: Path | None = None) -> Form:
    """Return the form in which a node that is started now would run."""
    if _is_off():
        return Form(False, f"{COMPILED_VARIABLE}={os.environ[COMPILED_VARIABLE]} says so")
    try:
        found = find_library(CONTROL, directory or compiled_directory())
    except ConfigError as exc:
        return Form(False, exc.message)
    return (
        form_of(found) if isinstance(found, CompiledLibrary) else Form(False, f"{found}: {_REMEDY}")
    )


def form_of(library: CompiledLibrary) -> Form:
    record = library.record
    size = f"{record.size_bytes / 1e6:.1f} MB"
    return Form(True, f"{record.num_modules} modules, {size}, by mypyc {record.mypy}")


def _is_off() -> bool:
    return os.environ.get(COMPILED_VARIABLE, "1").lower() in ("0", "false", "no", "off")
