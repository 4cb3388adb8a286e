"""Checks integers from programs, because the scheduler sorts and counts by them."""

from __future__ import annotations

import operator

from quire.core.errors import InvalidArgument


def whole_number(name: str, value: int) -> int:
    """``value`` as an int of 64 bits.

    Raises:
        InvalidArgument: it is not an integer, such as a program argument that was not converted.
    """
    try:
        number = operator.index(value)
    except TypeError as exc:
        remedy = f"give int({value!r})" if isinstance(value, str) else "give an integer"
        raise InvalidArgument(f"{name} is {value!r}: {remedy}") from exc
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidArgument(f"{name} is {number}: give an integer of 64 bits")
    return number


def call_order(
    thread: int, depth: int, priority: int, invocation: int, remaining_us: int
) -> dict[str, int]:
    """The checked fields by which a request is ordered among all that wait for a service."""
    return {
        "thread": whole_number("thread", thread),
        "depth": whole_number("depth", depth),
        "priority": whole_number("priority", priority),
        "invocation": whole_number("invocation", invocation),
        "remaining_us": whole_number("remaining_us", remaining_us),
    }
