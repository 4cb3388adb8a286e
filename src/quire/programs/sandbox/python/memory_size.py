"""Lets the host see how much memory a Python guest has.

The runtime does not show a component's memory. So the guest exports ``memory-pages``, and the code
that the builder made for it, which would call Python, is replaced here with the one instruction
that returns the size. The host may call it between any two turns.
"""

from __future__ import annotations

from quire.core.errors import ConfigError
from quire.programs.sandbox.python.binary_format import (
    HEADER_BYTES,
    number,
    section,
    sections,
    unsigned,
    with_changed_module,
)

_EXPORT = "memory-pages"
_POST_RETURN = f"cabi_post_{_EXPORT}"
"""Frees what an answer holds; a number holds nothing."""
_IMPORTS, _EXPORTS, _CODE = 2, 7, 10
_FUNCTION, _TABLE, _GLOBAL, _TAG = 0, 1, 3, 4
"""Kinds of imports and exports; 2 is a memory."""
_HAS_MAXIMUM = 1
_BODIES = {
    _EXPORT: bytes([0, 0x3F, 0, 0x0B]),  # no locals; memory.size 0; end
    _POST_RETURN: bytes([0, 0x0B]),
}


def with_memory_size(component: bytes) -> bytes:
    """The component, whose ``memory-pages`` returns the size of its memory in pages.

    Raises:
        ConfigError: no core module exports it as expected.
    """
    changed = with_changed_module(component, _changed_module)
    if changed is None:
        raise ConfigError(
            "the Python sandbox was built without the function that tells its memory: install the "
            "version of componentize-py that quire[sandbox] requires"
        )
    return changed


def _changed_module(module: bytes) -> bytes | None:
    """The module with the bodies replaced; ``None`` if it is not the one that exports both."""
    starts = {kind: start for kind, start, _ in sections(module)}
    if not {_IMPORTS, _EXPORTS, _CODE} <= starts.keys():
        return None
    exported = _exported_functions(module, starts[_EXPORTS])
    if not _BODIES.keys() <= exported.keys():
        return None
    num_imported = _num_imported_functions(module, starts[_IMPORTS])
    bodies = {exported[name] - num_imported: body for name, body in _BODIES.items()}
    if min(bodies) < 0:
        return None  # it passes on what another module defines
    out = bytearray(module[:HEADER_BYTES])
    for kind, start, end in sections(module):
        content = module[start:end]
        out += section(kind, _changed_code(content, bodies) if kind == _CODE else content)
    return bytes(out)


def _changed_code(code: bytes, bodies: dict[int, bytes]) -> bytes:
    """A code section with other ``bodies``, by the number of the function in the section."""
    count, at = number(code, 0)
    out = bytearray(unsigned(count))
    for function in range(count):
        size, at = number(code, at)
        body = bodies.get(function, code[at : at + size])
        out += unsigned(len(body)) + body
        at += size
    return bytes(out)


def _exported_functions(module: bytes, at: int) -> dict[str, int]:
    """The indexes of exported functions by their names."""
    found: dict[str, int] = {}
    count, at = number(module, at)
    for _ in range(count):
        size, at = number(module, at)
        name = module[at : at + size].decode()
        kind = module[at + size]
        index, at = number(module, at + size + 1)
        if kind == _FUNCTION:
            found[name] = index
    return found


def _num_imported_functions(module: bytes, at: int) -> int:
    """How many functions an import section has; their indexes come before the module's own."""
    found = 0
    count, at = number(module, at)
    for _ in range(count):
        for _name in ("module", "field"):
            size, at = number(module, at)
            at += size
        kind, at = module[at], at + 1
        if kind == _FUNCTION:
            found += 1
            _, at = number(module, at)
        elif kind == _GLOBAL:
            at += 2
        elif kind == _TAG:
            _, at = number(module, at + 1)
        else:
            at = _after_limits(module, at + (kind == _TABLE))
    return found


def _after_limits(module: bytes, at: int) -> int:
    """The index after the limits of a table or a memory, which begin at ``at``."""
    flags, at = number(module, at)
    _, at = number(module, at)
    if flags & _HAS_MAXIMUM:
        _, at = number(module, at)
    return at
