"""Numbers that programs give: what else they may be, the scheduler cannot sort or count by."""

from __future__ import annotations

import operator

from quire.core.errors import InvalidArgument


def whole_number(name: str, value: int) -> int:
    """``value`` as an int of 64 bits.

    Raises:
        InvalidArgument: it is none. Arguments of programs are strings, and easily forgotten to be.
    """
    try:
        number = operator.index(value)
    except TypeError as exc:
        remedy = f"give int({value!r})" if isinstance(value, str) else "give an integer"
        raise InvalidArgument(f"{name} is {value!r}: {remedy}") from exc
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidArgument(f"{name} is {number}: give an integer of 64 bits")
    return number
