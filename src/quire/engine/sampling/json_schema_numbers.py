"""Rewrites the bounds of numbers in a JSON schema to ones that llguidance enforces.

The library reads bounds as doubles. It lets the integer of an exclusive bound pass, on the side of
the bound towards zero, if the other bound has the same integer part, and another part of the schema
may add that bound. Such a bound becomes an inclusive one slightly further inside.
"""

from __future__ import annotations

import math
from typing import Any

from quire.core.errors import GrammarError

_LARGEST = float(2**63 - 1024)
"""The largest double that the library's integers hold."""

_FARTHEST = 1e18
"""Lower bounds must not exceed it, nor upper ones its negative: the library's digits end there."""

_SMALLEST = 1e-30
"""The least positive bound: each digit of a bound is a nested part of a regular expression."""

_COARSE = 2.0**49
"""The bound from which on eight doubles span one integer."""

_SIDES = (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1))


def keep_bounds(schema: dict[str, Any], place: str) -> None:
    """Replace the bounds in the schema at ``place``.

    Raises:
        GrammarError: a bound outside of the range that can be enforced.
    """
    for (
        inclusive,
        exclusive,
        sign,
    ) in _SIDES:  # upper bounds as lower bounds of negatives
        least, above = schema.pop(inclusive, None), schema.pop(exclusive, None)
        if isinstance(above, bool):  # draft 4: whether the other bound is exclusive
            least, above = (None, least) if above else (least, None)
        candidates = [] if least is None else [_at_least(sign * least)]
        if above is not None and _is_passed(sign * above):
            candidates.append(_above(sign * above))
        elif above is not None:
            schema[exclusive] = above
        if candidates:
            schema[inclusive] = _plain(sign * _kept(max(candidates), inclusive, sign, place))


def _is_passed(above: float) -> bool:
    """Whether the library might let the value of an exclusive lower bound pass."""
    if not _SMALLEST <= abs(above) < _COARSE:
        return True
    return above > 0 and float(above).is_integer()


def _at_least(bound: float) -> float:
    """The first double that is not below ``bound``, which may be an ``int`` between two."""
    nearest = _double(bound)
    return nearest if nearest >= bound else math.nextafter(nearest, math.inf)


def _above(bound: float) -> float:
    """The eighth double after it, because the library misreads the last digits of fractions; the
    next integer if eight doubles would skip it."""
    if math.isinf(_double(bound)):
        return _double(bound)
    if abs(bound) >= _COARSE:
        return _at_least(math.floor(bound) + 1)
    return float(bound) + 8 * math.ulp(float(bound))


def _kept(bound: float, keyword: str, sign: int, place: str) -> float:
    """The lower bound, or a higher one that the library can enforce."""
    if bound >= _FARTHEST:
        raise GrammarError(
            f"{place[:400]}: {keyword}: {sign * bound:g} is beyond {sign * _FARTHEST:g}: "
            "write the number as a string with a pattern"
        )
    if 0 < abs(bound) < _SMALLEST:
        return _SMALLEST if bound > 0 else 0.0
    return max(bound, -_LARGEST)


def _double(bound: float) -> float:
    try:
        return float(bound)
    except OverflowError:  # an int beyond all doubles
        return math.inf if bound > 0 else -math.inf


def _plain(bound: float) -> float:
    """The bound without ``.0`` if it is whole."""
    return int(bound) if bound.is_integer() else bound
