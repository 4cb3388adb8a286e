"""Libraries on disk: one file of machine code and a record beside it, named by their sources' key.

Owns their names and the decision whether they may be loaded, because loading runs code: only this
user may be able to write to the directory and the file (``ExecutableCache``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from quire.compilation.sources import Scope
from quire.core.errors import UNREADABLE, ConfigError
from quire.core.executable_cache import ExecutableCache, check_owned

NEVER_BUILT = "it was not compiled"
CHANGED = "it was compiled from other sources, or for another Python"


class LibraryRecord(msgspec.Struct, frozen=True):
    """The facts about a library that are known without loading it.

    ``group``: the name under which mypyc's shared part imports itself.
    """

    group: str
    mypy: str
    num_modules: int
    size_bytes: int
    build_s: float


@dataclass(frozen=True, slots=True)
class CompiledLibrary:
    """A library that fits the present sources. It has not been loaded."""

    path: Path
    record: LibraryRecord


def default_directory() -> Path:
    return Path.home() / ".cache" / "quire" / "compiled"


def library_prefix(scope: Scope) -> str:
    return f"{scope.compiled}-"


def record_prefix(scope: Scope) -> str:
    return f"record-{scope.compiled}-"


def library_name(scope: Scope, key: str) -> str:
    return f"{library_prefix(scope)}{key}.so"


def record_name(scope: Scope, key: str) -> str:
    return f"{record_prefix(scope)}{key}.json"


def open_cache(directory: Path) -> ExecutableCache:
    """Open the cache of compiled modules. Raises ``ConfigError``: the directory cannot be made, or
    others may write to it."""
    return ExecutableCache(directory, "cache of compiled modules")


def find_library(scope: Scope, directory: Path) -> CompiledLibrary | str:
    """The library for the present sources, or the reason why there is none.

    Raises:
        ConfigError: it exists but must not be loaded: other users may write to it, or it is not
            what was built.
    """
    if not directory.is_dir():
        return NEVER_BUILT
    cache = open_cache(directory)
    key = scope.key()
    path, record_path = cache.find(library_name(scope, key)), cache.find(record_name(scope, key))
    if path is None or record_path is None:
        earlier = any(directory.glob(library_name(scope, "*")))
        return CHANGED if earlier else NEVER_BUILT
    check_owned(path, "compiled module")
    check_owned(record_path, "record of a compiled module")
    return CompiledLibrary(path, _read(path, record_path))


def _read(path: Path, record_path: Path) -> LibraryRecord:
    try:
        record = msgspec.json.decode(record_path.read_bytes(), type=LibraryRecord)
    except (OSError, *UNREADABLE) as exc:
        raise ConfigError(f"{record_path} cannot be read ({exc}): {_AGAIN}") from exc
    size_bytes = path.stat().st_size
    if size_bytes != record.size_bytes:
        raise ConfigError(
            f"{path} has {size_bytes} bytes, {record.size_bytes} were built: {_AGAIN}"
        )
    return record


_AGAIN = "run 'quire compile --remove', then 'quire compile'"


def remove_libraries(scope: Scope, directory: Path) -> int:
    """Delete every library of ``scope``; returns how many. Processes that loaded one keep it.

    Raises:
        ConfigError: other users may write to the directory, or a file cannot be removed.
    """
    if not directory.is_dir():
        return 0
    open_cache(directory)
    count = 0
    try:
        for path in directory.glob(record_name(scope, "*")):
            path.unlink(missing_ok=True)
        for path in directory.glob(library_name(scope, "*")):
            path.unlink(missing_ok=True)
            count += 1
    except OSError as exc:
        raise ConfigError(f"{directory} cannot be emptied: {exc}") from exc
    return count
