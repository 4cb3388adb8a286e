"""WebAssembly's binary format, as far as built components are changed: sections and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

HEADER_BYTES = 8
_CORE_MODULE = 1
"""A section of a component."""


def with_changed_module(component: bytes, change: Callable[[bytes], bytes | None]) -> bytes | None:
    """The component with what ``change`` makes of its first core module for which that is not None;
    None if there is no such module."""
    out = bytearray(component[:HEADER_BYTES])
    found = False
    for kind, start, end in sections(component):
        content = component[start:end]
        changed = change(content) if kind == _CORE_MODULE and not found else None
        found = found or changed is not None
        out += section(kind, content if changed is None else changed)
    return bytes(out) if found else None


def sections(binary: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, start and end of each section of a component or a core module."""
    at = HEADER_BYTES
    while at < len(binary):
        size, start = number(binary, at + 1)
        yield binary[at], start, start + size
        at = start + size


def section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + unsigned(len(content)) + content


def number(binary: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number, and the index after it."""
    value = shift = 0
    while True:
        byte = binary[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def unsigned(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    """The signed LEB128 form of a number that is not negative: its last byte has no sign bit."""
    out = bytearray()
    while value >= 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
