"""The files of the Python component: which of our modules every guest has, and their digest.

Only modules that a guest can use are among them, because an edit of one builds the component again.
Those that only the host uses, such as the node's stores, topics and work queues, are left out.

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
_OF_THE_HOST = frozenset(
    {
        *(
            f"core/{name}.py"
            for name in (
                "config", "executable_cache", "fair_cache", "interpreter", "kept_queries_config",
                "kv_transport", "mcp_config", "parent_process", "piped_process", "policy",
                "ready_command", "record_parts", "scheduler_config", "scratch", "sizes", "tracing",
                "wire",
            )
        ),
        *(
            f"programs/services/{name}.py"
            for name in (
                "children", "disk_reserve", "encoding", "http_clients", "mcp", "messaging", "names",
                "shared", "store", "store_table", "topics", "turns", "work_queues",
            )
        ),
        "programs/chat/template_budget.py",
        "programs/sandbox/python/guest/app.py",
    }
)  # fmt: skip
"""The last one is the component's own ``app.py``."""
_STAND_INS = "programs/sandbox/python/guest/stand_ins"
_CHANGING = ("binary_format.py", "memory_image.py", "memory_size.py")
"""The modules that change the built component."""
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
    for module in _CHANGING:
        digest.update(_read(f"programs/sandbox/python/{module}"))
    for path, content in sorted(component_files().items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _own_modules() -> Iterator[str]:
    for pattern in _MODULES:
        for path in sorted(PACKAGE.glob(pattern)):
            relative = path.relative_to(PACKAGE).as_posix()
            if relative not in _OF_THE_HOST:
                yield relative


def _read(path: str) -> bytes:
    return (PACKAGE / path).read_bytes()
