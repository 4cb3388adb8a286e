"""Programs of several files: Python texts by path, one of which is ``main.py``.

Owns the format in which they are transported as one text, the checks of their paths, and the
importer that a guest uses for them. Does no file I/O: its callers read folders or requests. Nothing
is unpacked: a text is stored as it is, and a path is only used as a module name.
"""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from keyword import iskeyword
from types import CodeType, ModuleType

from quire.core.errors import InvalidArgument

MAIN = "main.py"
MARK = "# quire: a program of several files, as JSON\n"
MAX_FILES = 1024
MAX_PATH_CHARS = 256
_RESERVED = frozenset({"app", "httpx", "msgspec", "numpy", "quire", "uploaded", "wit_world"})
"""Top-level modules of a guest beside the standard library."""
_INIT = "__init__"

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


class PackageModules:
    """A finder and loader of the modules in ``files``, except the main one. ``root``: the name of
    the program's file; module file names begin with it, so that tracebacks can tell them from other
    code."""

    def __init__(self, files: Files, root: str) -> None:
        self._root = root
        self._texts: dict[str, tuple[str, str]] = {}
        self._packages: set[str] = set()
        for path, text in files.items():
            parts = module_parts(path)
            if path == MAIN:
                continue
            name = ".".join(parts[:-1] if parts[-1] == _INIT else parts)
            if parts[-1] == _INIT:
                self._packages.add(name)
            self._texts[name] = (path, text)
            for end in range(1, len(parts)):  # folders without an __init__.py are packages too
                self._packages.add(".".join(parts[:end]))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._texts and name not in self._packages:
            return None
        is_package = name in self._packages
        return spec_from_loader(name, self, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None: the default module is used."""

    def exec_module(self, module: ModuleType) -> None:
        if (found := self._texts.get(module.__name__)) is not None:
            path, text = found
            module.__file__ = f"{self._root}/{path}"
            exec(compiled(text, module.__file__), vars(module))


def compiled(text: str, file: str) -> CodeType:
    """The code of ``text``, whose lines are registered for tracebacks. Annotations are evaluated,
    unless the text itself has a ``__future__`` import."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec", dont_inherit=True)
