"""The files of the Python component: which of our modules every guest has, and their digest.

A program behaves the same natively and in the sandbox because both use these files. Four modules
are replaced by stand-ins (``guest.stand_ins``): msgspec and numpy are C extensions, httpx needs
sockets, and templates are rendered by the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

PACKAGE = Path(str(files("quire")))

_MODULES = (
    "__init__.py",
    "core/*.py",
    "programs/__init__.py",
    "programs/arguments.py",
    "programs/capabilities.py",
    "programs/inferlet.py",
    "programs/package.py",
    "programs/parameters.py",
    "programs/shown_values.py",
    "programs/source_file.py",
    "programs/tracebacks.py",
    "programs/api/*.py",
    "programs/chat/*.py",
    "programs/library/**/*.py",
    "programs/runtime/*.py",
    "programs/sdk/*.py",
    "programs/services/*.py",
    "programs/sandbox/__init__.py",
    "programs/sandbox/messages.py",
    "programs/sandbox/python/__init__.py",
    "programs/sandbox/python/guest/*.py",
)
_LEFT_OUT = frozenset(
    {
        "programs/chat/template_budget.py",
        "programs/sandbox/python/guest/app.py",
        "core/parent_process.py",
        "core/piped_process.py",
        "core/scratch.py",
        "core/wire.py",
    }
)
_STAND_INS = "programs/sandbox/python/guest/stand_ins"
_REPLACED = {
    "msgspec/__init__.py": "msgspec/__init__.py",
    "msgspec/conversion.py": "msgspec/conversion.py",
    "msgspec/json.py": "msgspec/json.py",
    "msgspec/schemas.py": "msgspec/schemas.py",
    "msgspec/structs.py": "msgspec/structs.py",
    "numpy/__init__.py": "numpy.py",
    "numpy/typing.py": "numpy.py",
    "quire/programs/chat/template.py": "template.py",
}

APP_MODULE = "app"
WORLD = "world.wit"


def component_files() -> dict[str, bytes]:
    """The path in the component and the contents of every file."""
    found = {"httpx.py": b"", f"{APP_MODULE}.py": _read("programs/sandbox/python/guest/app.py")}
    for path in _own_modules():
        found[f"quire/{path}"] = _read(path)
    for path, stand_in in _REPLACED.items():
        found[path] = _read(f"{_STAND_INS}/{stand_in}")
    return found


def world() -> bytes:
    """The interface between a guest and its host."""
    return _read(f"programs/sandbox/python/guest/{WORLD}")


def bundle_digest() -> str:
    """The SHA-256 of all files that determine the component."""
    digest = hashlib.sha256(world())
    digest.update(_read("programs/sandbox/python/memory_image.py"))  # changes the result, too
    for path, content in sorted(component_files().items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _own_modules() -> Iterator[str]:
    for pattern in _MODULES:
        for path in sorted(PACKAGE.glob(pattern)):
            relative = path.relative_to(PACKAGE).as_posix()
            if relative not in _LEFT_OUT:
                yield relative


def _read(path: str) -> bytes:
    return (PACKAGE / path).read_bytes()
