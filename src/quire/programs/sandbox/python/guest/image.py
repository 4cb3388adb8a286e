"""The last step of building the memory image from which every guest starts.

All guests share a page of the image until one of them writes to it; that guest then gets a copy,
which costs microseconds and 4 KiB. Two kinds of writes would reach most pages of the image without
need:

* reference counts: the image lists its objects here, and ``memory_image`` makes them immortal (PEP
683) before the image is compiled, so that CPython does not change their counts and its collector
does not visit them;
* new objects in the gaps between old ones: the gaps are filled here, so that a program's objects
are allocated together after the image.

Must not know what is in the image. Runs once, in the guest, while the image is built.
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
"""``_Py_IMMORTAL_INITIAL_REFCNT`` for 32-bit pointers, by release of CPython. With another release
nothing is listed, and guests work but use more memory each."""

_MAX_GAPS = 1 << 16
_LARGEST_GAP = 1 << 17
_ADDRESS_STEP = 8
_PAGE_BYTES = 4096


def mark() -> bytes:
    """32 bytes that are before and after the list, and nowhere else."""
    return hashlib.sha256(b"quire: the objects of the image").digest()


def settle() -> list[object]:
    """Call this last, and keep the result as long as the image exists.

    It contains the list (``mark``, the number of objects, the immortal count, addresses, ``mark``:
    32-bit numbers), the listed objects, and the objects that fill the gaps.
    """
    gc.collect()
    objects = reachable() if sys.version_info[:2] in IMMORTAL_COUNTS else []
    listing = listed(objects)
    filler = _fill_gaps(max([id(listing), listing.buffer_info()[0], *map(id, objects)]))
    gc.collect()
    gc.freeze()  # the collector never visits the objects of the image
    return [objects, listing, filler]


def listed(objects: list[Any]) -> array[int]:
    listing = array("I", mark())
    listing.append(len(objects))
    listing.append(IMMORTAL_COUNTS.get(sys.version_info[:2], 0))
    listing.extend(map(id, objects))
    listing.frombytes(mark())
    return listing


def reachable() -> list[Any]:
    """Every object that can be found. Objects held only by C code are missing and stay mortal."""
    found: list[Any] = []
    # one bit per address; a set of addresses would leave megabytes of gaps
    seen: dict[int, int] = {}
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
    for one in found:  # grows during the loop
        for other in _referents(one):
            find(other)
    return found


def _referents(one: Any) -> Iterator[Any]:
    yield from gc.get_referents(one)
    kind = type(one)  # not __class__, which a proxy forwards
    if kind is dict:
        yield from one  # get_referents omits keys that are strings
    elif kind is CodeType:  # and the contents of code objects
        yield from (one.co_consts, one.co_names, one.co_linetable, one.co_exceptiontable)
        yield from (one.co_filename, one.co_name, one.co_qualname)
        yield from one.co_varnames + one.co_cellvars + one.co_freevars
    elif issubclass(kind, type):  # and the contents of static types
        yield from gc.get_referents(vars(one))
        yield from (one.__mro__, one.__bases__)
        yield from type.__subclasses__(one)


def _fill_gaps(last: int) -> list[object]:
    """Allocate all free memory below the memory that was never used, which begins after
    ``last``."""
    filler: list[object] = [None] * _MAX_GAPS
    count, size = 0, _LARGEST_GAP
    behind: int | None = None  # start of the memory that was never used
    while count < _MAX_GAPS:
        # a plain object is the smallest allocation
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
