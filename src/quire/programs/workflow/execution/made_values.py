"""What a function, a tool of an MCP server or a program may give to a workflow: the types of
outputs, and how large and how deep a value may be.

Whatever comes from there is checked before anything else of the node works on it.
"""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Mapping
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.documents import checked_documents
from quire.programs.workflow.graphs.values import ValueType, fits, odd_vector

MAX_MADE_BYTES = 16 << 20
"""The most that one value may have: a byte for each character, and eight for each number and each
element. It is as much text as the documents of a query may have."""
MAX_MADE_LEVELS = 64
"""The most lists and objects inside one another, as in what is kept of a query."""
FEW_BYTES = 1 << 16
"""A value up to this size is measured at once, a larger one in a thread."""
_WORDS = (str, bytes, bytearray)
_PLAIN = frozenset({int, float, bool, type(None)})


async def checked_value(where: str, who: str, kind: ValueType, made: Any) -> Any:
    """``check_value``, of a large value in a thread."""
    if _size_problem(made, FEW_BYTES) is None:
        return check_value(where, who, kind, made)
    return await asyncio.to_thread(check_value, where, who, kind, made)


def check_value(where: str, who: str, kind: ValueType, made: Any) -> Any:
    """Return ``made`` if it may be an output of type ``kind``. ``where``: the component; ``who``:
    what has made the value, for errors.

    Raises:
        InvalidArgument: it is of another type, too large, or too deep.
    """
    problem = _size_problem(made, MAX_MADE_BYTES)
    if problem is None and kind is ValueType.DOCUMENTS and isinstance(made, list) and made:
        try:
            return checked_documents(made)
        except InvalidArgument as exc:
            problem = f"what is no list of documents: {exc.message}"
    if problem is None:
        problem = _element_problem(kind, made)
    if problem is None and not fits(kind, made):
        problem = (
            f"{reprlib.repr(made)} ({type(made).__name__}), not {kind}: return a value of the "
            "declared type, or change the type"
        )
    if problem is not None:
        raise InvalidArgument(f"{where}: {who} returned {problem}", param=where)
    return made


def _size_problem(made: Any, most: int) -> str | None:
    """Say why ``made`` is too large or too deep, or return None. What is neither a text nor a list
    nor an object counts as a number."""
    num_bytes, waiting = 0, [(made, MAX_MADE_LEVELS)]
    while waiting:
        one, levels = waiting.pop()
        inside: list[Any] = []
        if isinstance(one, _WORDS):
            num_bytes += len(one)
        elif isinstance(one, Mapping):
            num_bytes += 8 * len(one)
            inside = [*one.keys(), *one.values()] if num_bytes <= most else []
        elif isinstance(one, list | tuple | set | frozenset):
            num_bytes += 8 * len(one)
            inside = list(one) if num_bytes <= most else []
        else:
            num_bytes += 8
        if num_bytes > most:
            return (
                f"more than {most} bytes (one for each character, eight for each number and "
                "element): return less, or write it to a file and return the file's name"
            )
        if not inside or _PLAIN.issuperset(map(type, inside)):
            continue
        if not levels:
            return (
                f"lists and objects inside one another on more than {MAX_MADE_LEVELS} levels: "
                "return a flatter value"
            )
        waiting.extend((each, levels - 1) for each in inside)
    return None


def _element_problem(kind: ValueType, made: Any) -> str | None:
    """Describe what the users of a text, or of the elements of a list, could not use."""
    match kind:
        case ValueType.TEXT if isinstance(made, str):
            return _odd_text([made])
        case ValueType.TEXTS if isinstance(made, list):
            return _odd_text(made)
        case ValueType.VECTORS if isinstance(made, list):
            return _odd_row(made)
    return None


def _odd_text(texts: list[Any]) -> str | None:
    for place, one in enumerate(texts):
        if not isinstance(one, str):
            return f"a list whose element {place} is {type(one).__name__}: return texts alone"
        if not one.isascii():
            try:
                one.encode()
            except UnicodeEncodeError:
                return "half of a surrogate pair, which is no character: decode the text rightly"
    return None


def _odd_row(rows: list[Any]) -> str | None:
    place = odd_vector(rows)
    if place is None:
        return None
    return (
        f"vectors of which number {place} is {rows[place]!r:.40}: return lists of numbers, all "
        "finite and of one length"
    )
