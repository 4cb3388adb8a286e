"""Programs' requests to encoders, and the messages between a node and an encoder.

An encoder (an embedding model or a cross-encoder) executes one batch at a time. Unlike an engine it
keeps nothing between batches on which a result depends; it may keep what it has computed, so as not
to compute it again.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
import numpy as np

from quire.core.batch import F32, I32
from quire.core.command_base import CommandBase
from quire.core.errors import ErrorRecord

EncoderKind = Literal["embedding", "cross_encoder"]


class EncoderInfo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An encoder's description, sent when it is ready. ``dimensions`` is D: the size of an
    embedding, or 1 for a cross-encoder's score. ``max_tokens``: the longest sequence, special
    tokens included. ``max_batch_tokens``: the largest batch of several sequences. ``max_pending``:
    the number of sequences of one tenant that may wait or run."""

    model: str
    family: str
    kind: EncoderKind
    dimensions: int
    max_tokens: int
    vocab_size: int
    num_types: int
    num_parameters: int
    max_batch_tokens: int = 8192
    max_pending: int = 8192

    @property
    def lacks(self) -> str:
        """Always empty: an encoder starts only with everything that it was configured with."""
        return ""


class Encode(CommandBase, frozen=True, kw_only=True):
    """Compute a row for each of S sequences: ``tokens`` and ``types`` [T] are the sequences
    concatenated, of ``lengths`` [S]. The replies are ``Encoded``."""

    tokens: I32
    types: I32
    lengths: I32


class Encoded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rows of the command's sequences, from sequence ``first`` on. Replies arrive in any order, as
    batches end; the command ends with the last. ``batch``: the number of the batch. ``is_short``:
    the batch was sent with room in it, though others waited."""

    first: int
    rows: F32
    batch: int = 0
    is_short: bool = False


class EncodeBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One batch. ``tokens`` and ``types`` [T]: the sequences concatenated, of ``lengths`` [S].
    ``owners`` [S]: the owner for whom each is computed; what the encoder keeps of a sequence is
    used again only for the same owner. Empty: nothing is kept."""

    number: int
    tokens: I32
    types: I32
    lengths: I32
    owners: I32 = msgspec.field(default_factory=lambda: np.empty(0, np.int32))


class EncodeResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of one batch. ``rows`` [S, D], in the order of the batch, or the error that
    prevented them. ``elapsed_s``: the encoder's own time for the batch. ``num_reused_tokens``: of
    texts whose vectors it had kept, each text of the batch counted once. ``cache_bytes``: the size
    of what it keeps now."""

    number: int
    rows: F32
    elapsed_s: float = 0.0
    num_reused_tokens: int = 0
    cache_bytes: int = 0
    error: ErrorRecord | None = None


class EncoderCore(Protocol):
    """Runs batches. Pure: the same batch gives the same rows, up to rounding. Used by one thread
    only."""

    @property
    def info(self) -> EncoderInfo: ...

    def encode(self, batch: EncodeBatch) -> EncodeResult:
        """Run one batch. Raises ``InvalidArgument`` for token ids or lengths outside the model's
        range."""
        ...
