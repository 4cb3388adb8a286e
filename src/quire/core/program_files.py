"""Programs of several files: Python texts by path, one of which is ``main.py``.

Owns the format in which they are transported as one text, and the checks of their paths. Does no
file I/O: its callers read folders or requests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from keyword import iskeyword

from quire.core.errors import InvalidArgument

MAIN = "main.py"
MARK = "# quire: a program of several files, as JSON\n"
MAX_FILES = 1024
MAX_PATH_CHARS = 256
_RESERVED = frozenset({"app", "httpx", "msgspec", "numpy", "quire", "uploaded", "wit_world"})
"""Top-level modules of a guest beside the standard library."""
Files = Mapping[str, str]
"""Texts by path: ``main.py``, ``tools.py``, ``parsing/__init__.py``."""


def package_code(files: Files) -> bytes:
    """``files`` as the code of one program.

    Raises:
        InvalidArgument: see ``check_files``.
    """
    check_files(files)
    return (MARK + json.dumps(dict(sorted(files.items())))).encode()


def is_package(source: str) -> bool:
    return source.startswith(MARK)


def files_of(source: str) -> Files:
    """The files in ``package_code``'s result.

    Raises:
        InvalidArgument: ``source`` is not such a result.
    """
    try:
        files = json.loads(source.removeprefix(MARK))
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument(f"the program's files cannot be read: {exc}") from exc
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise InvalidArgument("the program's files must be texts by path")
    check_files(files)
    return files


def check_files(files: Files) -> None:
    """Raise ``InvalidArgument`` unless ``files`` are modules with names that are not taken, and
    include a main one."""
    if len(files) > MAX_FILES:
        raise InvalidArgument(f"a program of {len(files)} files: at most {MAX_FILES} are allowed")
    for path in files:
        parts = module_parts(path)
        if path != MAIN and parts[0] in sys.stdlib_module_names | _RESERVED | {"main"}:
            raise InvalidArgument(
                f"{path} would hide the module {parts[0]!r}, which every program has: rename it"
            )
    if MAIN not in files:
        raise InvalidArgument(
            f"a program of several files needs {MAIN} with its @inferlet; it has "
            f"{', '.join(sorted(files)[:5]) or 'no files'}: add {MAIN}"
        )


def module_parts(path: str) -> tuple[str, ...]:
    """The parts of the name of the module at ``path``.

    Raises:
        InvalidArgument: it is not the relative path of a module, such as ``tools/parsing.py``.
    """
    *folders, file = path.split("/")
    parts = (*folders, file.removesuffix(".py"))
    is_named = all(part.isidentifier() and not iskeyword(part) for part in parts)
    if not is_named or not file.endswith(".py") or len(path) > MAX_PATH_CHARS:
        raise InvalidArgument(
            f"{path[:80]!r} is not a module path: give relative paths such as "
            "'tools/parsing.py', whose parts are Python names"
        )
    return parts
