"""Probability mass as integers: the arithmetic under every choice of a token.

Sums of rounded exponentials depend on the order of addition, and so on the batch, the number of
threads and the device. Here a token's mass is an *integer*, so sums are exact in any order, and a
draw is the same in every batch and on every backend. Every operation is an IEEE 754 operation that
is rounded separately; none may be contracted into a fused multiply-add. With ``max`` the best score
of the row and everything in float32::

    y = max((score - max) * LOG2_E, -64)
    n = floor(y)
    f = y - n
    q = ((((C5 * f + C4) * f + C3) * f + C2) * f + C1) * f + 1
    mass = trunc(q * 2^(n + 32))

The best token has mass 2^32; a token less than 2^-32 times as likely has mass 0. Up to 2^21 tokens
sum exactly in float64. ``q`` is 2^f with a relative error below 2e-7 and does not decrease as f
grows. Rows with a NaN score, or with infinite scores only, have NaN masses.

``docs/reference/sampling.md`` has the same for readers; ``tests/engine/sampling_reference.py`` is
the same in NumPy.

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
"""The coefficient of f^5 first, the constant last; each is a float32."""

MAX_MASS = 2.0**32
"""The mass of the best token."""

_CHUNK_ELEMENTS = 1 << 17
"""Scores processed at a time on a CPU, so that about twenty passes over them stay in its cache."""


def rows_at_a_time(scores_SC: Tensor) -> int:
    """The number of rows to process together."""
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
    # 2^(n + 32) assembled from its bits: n + 32 + 127 is the exponent field
    scale = whole.add_(159.0).to(torch.int32).bitwise_left_shift_(23).view(torch.float32)
    return power.mul_(scale).trunc_()


def totals(scores_SC: Tensor) -> Tensor:
    """The value of ``total(masses(scores_SC))``, without keeping the masses."""
    rows = rows_at_a_time(scores_SC)
    starts = range(0, len(scores_SC), rows)
    return torch.cat([total(_masses(scores_SC[start : start + rows])) for start in starts])


def total(masses_SC: Tensor) -> Tensor:
    """The sum of each row ``[S, 1]``, exact, in float64."""
    return masses_SC.sum(dim=-1, keepdim=True, dtype=torch.float64)
