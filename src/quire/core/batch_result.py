"""The messages of an engine while it serves: results of batch messages, and the ends of transfers.

Shapes: R rows, T new tokens, S sequences, D distributions, M samples, N sampled tokens.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.batch import F32, I32, no_i32
from quire.core.errors import ErrorRecord
from quire.core.exchange import ReceiveEnded, SendEnded


def _nothing(num_axes: int, dtype: type) -> NDArray[Any]:
    array: NDArray[Any] = np.empty((0,) * num_axes, dtype)
    array.flags.writeable = False
    return array


NO_I32: I32 = _nothing(1, np.int32)
NO_F32: F32 = _nothing(1, np.float32)
NO_I32_ROWS: I32 = _nothing(2, np.int32)
NO_F32_ROWS: F32 = _nothing(2, np.float32)
"""The empty arrays of a result. Encoding leaves out these very objects: most results hold tokens or
samples only, and an encoded array costs more than its few bytes."""


class SequenceEnd(IntEnum):
    """Why a sequence ended in this message; RUNNING if it did not."""

    RUNNING = 0
    STOP_TOKEN = 1
    STOP_STRING = 2
    GRAMMAR = 3
    MAX_TOKENS = 4
    NO_ROOM = 5
    FAILED = 6


class SequenceTokens(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Tokens sampled by sequences, ragged over S (every sequence of the message, in order:
    first those of ``forward``, then those of ``advance``).

    ``token_starts`` [S+1] · ``tokens`` [N] · ``ends`` [S] SequenceEnd · ``matched`` [S] stop token
    id, index of the stop string, or -1 · ``logprobs`` [N] and ``top_ids`` / ``top_logprobs``
    [N, K] when any sequence asked for them (NaN and -1 elsewhere), else empty.
    """

    sequences: I32
    epochs: I32
    token_starts: I32
    tokens: I32
    ends: I32
    matched: I32
    logprobs: F32 = NO_F32
    top_ids: I32 = NO_I32_ROWS
    top_logprobs: F32 = NO_F32_ROWS


class RowFailure(msgspec.Struct, kw_only=True):
    """One row that could not be executed; the other rows of the message were executed."""

    stage: str
    index: int
    error: ErrorRecord


class BatchResult(msgspec.Struct, kw_only=True, tag=True, omit_defaults=True):
    """The results of one message.

    ``elapsed_s`` is the engine's own time for it. ``dist_starts`` [D+1], ``dist_ids`` and
    ``dist_probs`` ragged. ``samples`` [M]. ``score_logprobs`` [T] with ``score_ids`` /
    ``score_top`` [T, num_scores] where targets were given, else empty.

    ``attention_mass`` [L, C] of the requested rows, ``attention_starts`` [rows + 1] into C: each
    row has a column for every slot of its table in entry order, then for its new tokens (no columns
    if it failed). A value is the sum over the row's tokens of the attention probability of that
    slot, averaged over the query heads. Slots that the row wrote count as new tokens only.
    """

    serial: int
    elapsed_s: float
    num_tokens: int = 0
    sequences: SequenceTokens | None = None
    dist_starts: I32 = NO_I32
    dist_ids: I32 = NO_I32
    dist_probs: F32 = NO_F32
    samples: I32 = NO_I32
    score_logprobs: F32 = NO_F32
    score_ids: I32 = NO_I32_ROWS
    score_top: F32 = NO_F32_ROWS
    attention_starts: I32 = NO_I32
    attention_mass: F32 = NO_F32_ROWS
    failures: list[RowFailure] = msgspec.field(default_factory=list)


class TransfersEnded(msgspec.Struct, kw_only=True, tag=True):
    """The ends of ``transfers``: their bytes have arrived, except those of ``failed``, which are
    some of ``transfers``; ``problem`` states why the first of them failed. ``elapsed_s``: the time
    of copying them, all in one direction; 0.0 if the engine does not measure it."""

    transfers: I32
    elapsed_s: float = 0.0
    failed: I32 = msgspec.field(default_factory=no_i32)
    problem: str = ""


EngineReport = TransfersEnded | SendEnded | ReceiveEnded
"""The messages that an engine sends of its own accord, between results."""

EngineAnswer = BatchResult | EngineReport
"""The messages that an engine sends while it serves."""
