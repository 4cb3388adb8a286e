"""Probability mass as integers: the arithmetic that every choice of a token rests on.

Sums of rounded exponentials depend on the order in which they are added, and so on the batch, the
number of threads and the device. Here a token's mass is an *integer*, so sums are exact whatever
their order, and a draw is the same in every batch and on every backend. Every operation is one of
IEEE 754's, rounded by itself; nothing may be contracted into a fused multiply-add. With ``max`` the
best score of the row and all of this in float32::

    y = max((score - max) * LOG2_E, -64)
    n = floor(y)
    f = y - n
    q = ((((C5 * f + C4) * f + C3) * f + C2) * f + C1) * f + 1
    mass = trunc(q * 2^(n + 32))

The best token has the mass 2^32, a token less than 2^-32 times as likely has none. Up to 2^21
tokens sum exactly in float64. ``q`` is 2^f with a relative error below 2e-7 and never falls as f
grows. Rows with a score that is not a number, or with infinite ones alone, have masses that are
not numbers.

``docs/reference/sampling.md`` has the same for readers; ``tests/engine/sampling_reference.py`` says
it again in NumPy.

Shapes: S rows, C candidates per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG2_E = float.fromhex("0x1.715476p+0")
COEFFICIENTS = tuple(
    float.fromhex(text)
    for text in (
        "0x1.eca6ecp-10",
        "0x1.269dfp-7",
        "0x1.c9444p-5",
        "0x1.ebd8ap-3",
        "0x1.62e4c8p-1",
        "0x1p+0",
    )
)
"""Of f^5 first, down to the constant; each is a float32."""

MAX_MASS = 2.0**32
"""The best token's."""

_CHUNK_ELEMENTS = 1 << 17
"""Scores worked on at a time on a CPU: twenty passes over them should stay in its cache."""


def rows_at_a_time(scores_SC: Tensor) -> int:
    """How many rows are best worked on together."""
    if scores_SC.device.type != "cpu":
        return len(scores_SC)
    return max(1, _CHUNK_ELEMENTS // max(1, scores_SC.shape[1]))


def masses(scores_SC: Tensor) -> Tensor:
    """The mass of every candidate, float32 ``[S, C]``; 0 where the score is ``-inf``."""
    rows = rows_at_a_time(scores_SC)
    if rows >= len(scores_SC):
        return _masses(scores_SC)
    starts = range(0, len(scores_SC), rows)
    return torch.cat([_masses(scores_SC[start : start + rows]) for start in starts])


def _masses(scores_SC: Tensor) -> Tensor:
    best_S1 = scores_SC.amax(dim=-1, keepdim=True)
    fraction = (scores_SC - best_S1).mul_(LOG2_E).clamp_(min=-64.0)
    whole = fraction.floor()
    fraction.sub_(whole)
    power = fraction * COEFFICIENTS[0]
    for coefficient in COEFFICIENTS[1:-1]:
        power.add_(coefficient).mul_(fraction)
    power.add_(COEFFICIENTS[-1])
    # 2^(n + 32) put together from its bits: n + 32 + 127 is the exponent field
    scale = whole.add_(159.0).to(torch.int32).bitwise_left_shift_(23).view(torch.float32)
    return power.mul_(scale).trunc_()


def totals(scores_SC: Tensor) -> Tensor:
    """``total(masses(scores_SC))`` without keeping the masses."""
    rows = rows_at_a_time(scores_SC)
    starts = range(0, len(scores_SC), rows)
    return torch.cat([total(_masses(scores_SC[start : start + rows])) for start in starts])


def total(masses_SC: Tensor) -> Tensor:
    """The sum of each row ``[S, 1]``, exact, in float64."""
    return masses_SC.sum(dim=-1, keepdim=True, dtype=torch.float64)
