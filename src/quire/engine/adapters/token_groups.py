"""Groups a step's tokens by adapter; every backend's adapter products use the groups.

Owns no weights. The tokens of one adapter need not be adjacent: rows are in the order of the
message, decoding rows last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32
from quire.core.errors import InvalidArgument

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TokenGroup:
    """Tokens of one adapter, ascending. ``tokens`` is None when they are all tokens of the step."""

    adapter: int
    tokens: I64 | None


def group_tokens(adapters_R: I32, row_starts: I64) -> list[TokenGroup]:
    """One group per adapter that a row names, sorted by adapter. Tokens without adapter are in no
    group."""
    adapters_T = np.repeat(adapters_R, np.diff(row_starts))
    used = np.unique(adapters_T)
    if len(used) == 1 and used[0] >= 0:
        return [TokenGroup(int(used[0]), None)]
    return [
        TokenGroup(int(adapter), np.flatnonzero(adapters_T == adapter))
        for adapter in used
        if adapter >= 0
    ]


def adapters_or_none(*adapters: Sequence[int] | I32 | I64) -> I32 | None:
    """The rows' adapters, concatenated; None when no row names one."""
    joined = np.concatenate([np.asarray(part, np.int32) for part in adapters])
    return joined if len(joined) and joined.max() >= 0 else None


def check_adapter(adapter: int, num_adapters: int) -> None:
    """Raise ``InvalidArgument`` unless ``adapter`` is -1 or one of the engine's."""
    if not -1 <= adapter < num_adapters:
        raise InvalidArgument(
            f"adapter {adapter} is not among the engine's {num_adapters}: name one that it lists"
        )
