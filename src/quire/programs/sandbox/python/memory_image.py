"""Makes the objects in the memory image of a built Python component immortal.

The image is the data of one core module in the component. The guest has written a list of its
objects into it (``guest.image``). Their reference counts are overwritten here with the value that
CPython never changes (PEP 683), so that the pages with these objects stay shared between guests.
"""

from __future__ import annotations

import struct
from array import array

from quire.core.errors import ConfigError
from quire.programs.sandbox.python.binary_format import (
    HEADER_BYTES,
    number,
    section,
    sections,
    signed,
    unsigned,
    with_changed_module,
)
from quire.programs.sandbox.python.guest.image import mark

_DATA, _DATA_COUNT = 11, 12
"""Sections of a core module."""
_ACTIVE = 0
_I32_CONST, _END = 0x41, 0x0B
_MAX_COUNT = 1 << 24
"""No object of an image that is being built has this many references."""


class _Unknown(Exception):
    """Data in a form that is left unchanged."""


def with_immortal_objects(component: bytes) -> bytes:
    """The component with the listed objects of its image made immortal.

    Raises:
        ConfigError: it contains no list of objects.
    """
    changed = with_changed_module(component, _changed_module)
    if changed is None:
        raise ConfigError(
            "the Python sandbox was built without the list of its objects: install the version of "
            "componentize-py that quire[sandbox] requires"
        )
    return changed


def _changed_module(module: bytes) -> bytes | None:
    """The module with immortal objects; ``None`` if it is not the one with the image."""
    data = next(((start, end) for kind, start, end in sections(module) if kind == _DATA), None)
    if data is None or module.find(mark(), *data) < 0:
        return None
    try:
        base, image = _read_data(module, data[0])
    except _Unknown:
        return None
    _make_immortal(base, image)
    out = bytearray(module[:HEADER_BYTES])
    for kind, start, end in sections(module):
        content = module[start:end]
        if kind == _DATA:
            content = _one_segment(base, image)
        elif kind == _DATA_COUNT:
            content = unsigned(1)
        out += section(kind, content)
    return bytes(out)


def _make_immortal(base: int, image: bytearray) -> None:
    """Make the listed objects immortal. ``image`` is the memory from the address ``base`` on."""
    addresses, immortal = _listing(image)
    for address in addresses:
        (count,) = struct.unpack_from("<I", image, address - base)
        if 0 < count < _MAX_COUNT:  # others are immortal already
            struct.pack_into("<I", image, address - base, immortal)


def _listing(image: bytearray) -> tuple[array[int], int]:
    """The addresses of objects, and the reference count of immortal objects. The mark alone may
    also occur elsewhere in the image, where it was computed."""
    ends = mark()
    at = image.find(ends)
    while at >= 0:
        first = at + len(ends) + 8
        count, immortal = struct.unpack_from("<II", image, first - 8)
        last = first + 4 * count
        if image[last : last + len(ends)] == ends:
            return array("I", bytes(image[first:last])), immortal
        at = image.find(ends, at + 1)
    raise ConfigError("the memory of the Python sandbox has no complete list of its objects")


def _read_data(module: bytes, at: int) -> tuple[int, bytearray]:
    """The lowest address that a data section sets, and the memory from there on."""
    segments: list[tuple[int, int, int]] = []
    count, at = number(module, at)
    for _ in range(count):
        kind, at = number(module, at)
        if kind != _ACTIVE or module[at] != _I32_CONST:
            raise _Unknown
        address, at = number(module, at + 1)  # below 2 GiB, so its sign does not matter
        if module[at] != _END:
            raise _Unknown
        size, at = number(module, at + 1)
        segments.append((address, at, size))
        at += size
    base = min(address for address, _, _ in segments)
    image = bytearray(max(address + size for address, _, size in segments) - base)
    for address, start, size in segments:
        image[address - base : address - base + size] = module[start : start + size]
    return base, image


def _one_segment(base: int, image: bytearray) -> bytes:
    """A data section with one segment, which wasmtime maps instead of copying it."""
    head = bytes([1, _ACTIVE, _I32_CONST]) + signed(base) + bytes([_END])
    return head + unsigned(len(image)) + image
