"""What is done to the memory image that every guest starts from, as the last step of its building.

A page of the image belongs to all guests together until one of them writes to it; then that guest
has a copy, which costs it microseconds and 4 KiB. Two kinds of writes would reach most pages of the
image for nothing:

* reference counts: the image lists its objects here, and ``memory_image`` makes them immortal
  (PEP 683) before the image is compiled, so that CPython leaves their counts alone and its
  collector does not look into them;
* new objects in the gaps between old ones: the gaps are filled here, so that a program's objects
  lie together behind the image.

Must not know what is in the image. Runs once, in the guest, while it is built.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from array import array
from collections.abc import Iterator
from types import CodeType
from typing import Any

IMMORTAL_COUNTS = {(3, 14): 5 << 28}
"""``_Py_IMMORTAL_INITIAL_REFCNT`` where pointers have 32 bits, by release of CPython; with another
release nothing is listed, and guests work as before with more memory each."""

_MAX_GAPS = 1 << 16
_LARGEST_GAP = 1 << 17
_ADDRESS_STEP = 8
_PAGE_BYTES = 4096


def mark() -> bytes:
    """32 bytes that stand in front of the listing and behind it, and nowhere else."""
    return hashlib.sha256(b"quire: the objects of the image").digest()


def settle() -> list[object]:
    """Call this last, and keep the answer for as long as the image lives.

    It holds the listing (``mark``, how many, the immortal count, addresses, ``mark``: 32-bit
    numbers), what it lists, and what fills the gaps.
    """
    gc.collect()
    objects = reachable() if sys.version_info[:2] in IMMORTAL_COUNTS else []
    listing = listed(objects)
    filler = _fill_gaps(max([id(listing), listing.buffer_info()[0], *map(id, objects)]))
    gc.collect()
    gc.freeze()  # the collector never visits what was there when the image was made
    return [objects, listing, filler]


def listed(objects: list[Any]) -> array[int]:
    listing = array("I", mark())
    listing.append(len(objects))
    listing.append(IMMORTAL_COUNTS.get(sys.version_info[:2], 0))
    listing.extend(map(id, objects))
    listing.frombytes(mark())
    return listing


def reachable() -> list[Any]:
    """Every object that can be found. What only C code holds is missing: it stays mortal."""
    found: list[Any] = []
    seen: dict[int, int] = {}  # one bit an address: a set of them would leave megabytes of gaps
    own = {id(found), id(seen)}

    def find(one: Any) -> None:
        page, place = divmod(id(one), _PAGE_BYTES)
        bits, bit = seen.get(page, 0), 1 << place // _ADDRESS_STEP
        if not bits & bit and id(one) not in own:
            seen[page] = bits | bit
            found.append(one)

    own.add(id(find))
    own.update(map(id, find.__closure__ or ()))
    for one in gc.get_objects():
        find(one)
    find(object)
    for one in found:  # grows behind us
        for other in _referents(one):
            find(other)
    return found


def _referents(one: Any) -> Iterator[Any]:
    yield from gc.get_referents(one)
    kind = type(one)  # a proxy says that it is what it stands for
    if kind is dict:
        yield from one  # the collector does not ask for keys that are text
    elif kind is CodeType:  # nor for what code holds
        yield from (one.co_consts, one.co_names, one.co_linetable, one.co_exceptiontable)
        yield from (one.co_filename, one.co_name, one.co_qualname)
        yield from one.co_varnames + one.co_cellvars + one.co_freevars
    elif issubclass(kind, type):  # nor for anything of types that are built in
        yield from gc.get_referents(vars(one))
        yield from (one.__mro__, one.__bases__)
        yield from type.__subclasses__(one)


def _fill_gaps(last: int) -> list[object]:
    """Take all free memory in front of what was never used; that begins behind ``last``."""
    filler: list[object] = [None] * _MAX_GAPS
    count, size = 0, _LARGEST_GAP
    behind: int | None = None  # where memory begins that was never used
    while count < _MAX_GAPS:
        # an object without anything is the smallest that there is
        block = bytes(size) if size else object()
        if behind is None and id(block) > last:
            behind = id(block)
        if behind is None or id(block) < behind:
            filler[count] = block
            count += 1
        elif not size:
            break
        else:
            size = size * 7 // 8 if size > 1024 else max(0, size - _ADDRESS_STEP)
    return filler
