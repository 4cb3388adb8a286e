"""Messages from rank 0 to the other ranks: the calls of its runner as data, in order.

Only rank 0 decides. The other ranks execute call by call, taking part in each call's collectives;
only ``Load`` and ``Join`` are answered.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32, U64
from quire.core.config import EngineConfig
from quire.core.errors import ErrorRecord
from quire.core.wire import Codec
from quire.engine.attention.backend import AttentionRows
from quire.engine.kv_cache.page_tables import PageLists
from quire.engine.kv_cache.pool import KVPool

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


class RankCall(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of the messages that rank 0 sends."""


class Join(RankCall, frozen=True, kw_only=True):
    """Join the group at rank 0's port; the first message."""

    port: int
    device: str


class Load(RankCall, frozen=True, kw_only=True):
    """Load this model in place of the current one, if any."""

    config: EngineConfig


class RankRowMask(msgspec.Struct, frozen=True, kw_only=True):
    """``AttentionRows.masks`` of one row: bool [num_new, num_columns] as bytes."""

    row: int
    shown: U8


class RankRows(msgspec.Struct, frozen=True, kw_only=True):
    """``AttentionRows`` without the parts that every rank has itself."""

    row_starts: I64
    positions: I32
    slots: I64
    page_starts: I64
    page_blocks: I32
    page_visible: U64
    masks: list[RankRowMask]
    adapters: I32 | None


class RankEmbed(RankCall, frozen=True, kw_only=True):
    tokens: I64


class WriteEmbeds(RankCall, frozen=True, kw_only=True):
    """Write embeds; the vectors follow as a broadcast from rank 0."""

    embeds: I32


class RunRows(RankCall, frozen=True, kw_only=True):
    rows: RankRows
    tokens: I64
    embeds: I32


class PlanDecode(RankCall, frozen=True, kw_only=True):
    rows: RankRows
    num_steps: int


class RunDecode(RankCall, frozen=True, kw_only=True):
    """Advance the plan and run one step of it."""

    tokens: I64
    positions: I32
    slots: I64


class KeepRows(RankCall, frozen=True, kw_only=True):
    rows: I64


class Logits(RankCall, frozen=True, kw_only=True):
    """Compute logits; the hidden states follow as a broadcast from rank 0."""

    num_rows: int


class RankCopySlots(RankCall, frozen=True, kw_only=True):
    source: I32
    target: I32


class RankReposition(RankCall, frozen=True, kw_only=True):
    slots: I32
    positions: I32


class RankSwapOut(RankCall, frozen=True, kw_only=True):
    blocks: I32
    host_blocks: I32


class RankSwapIn(RankCall, frozen=True, kw_only=True):
    host_blocks: I32
    blocks: I32


AnyCall = (
    Join
    | Load
    | RankEmbed
    | WriteEmbeds
    | RunRows
    | PlanDecode
    | RunDecode
    | KeepRows
    | Logits
    | RankCopySlots
    | RankReposition
    | RankSwapOut
    | RankSwapIn
)


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The rank has joined the group."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to ``Load``; contents and pool sizes must equal rank 0's."""

    content: str = ""
    adapter_digests: tuple[str, ...] = ()
    num_blocks: int = 0
    num_host_blocks: int = 0
    error: ErrorRecord | None = None


Answer = Joined | Loaded


class TokenCall(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of what rank 0's data plane asks of another rank while both compute. It has the pool as
    it is after the first ``num_calls`` of rank 0's calls."""

    num_calls: int


class ReadTokens(TokenCall, frozen=True, kw_only=True):
    """Answer K and V of this rank's heads, in canonical form. ``on_host``: ``slots`` are those of
    host blocks."""

    slots: I64
    first_layer: int
    num_layers: int
    on_host: bool = False


class WriteTokens(TokenCall, frozen=True, kw_only=True):
    """Write K and V of this rank's heads, given in canonical form."""

    slots: I64
    first_layer: int
    num_layers: int
    tokens: U8


class PlaceTokens(TokenCall, frozen=True, kw_only=True):
    """Set the positions of slots."""

    slots: I64
    positions: I32


AnyTokenCall = ReadTokens | WriteTokens | PlaceTokens


class TokensRead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to a ``TokenCall``; no bytes but for ``ReadTokens``."""

    tokens: U8


def call_codec() -> Codec[AnyCall]:
    return Codec(AnyCall)


def token_call_codec() -> Codec[AnyTokenCall]:
    return Codec(AnyTokenCall)


def token_answer_codec() -> Codec[TokensRead]:
    return Codec(TokensRead)


def answer_codec() -> Codec[Answer]:
    return Codec(Answer)


def pack_rows(rows: AttentionRows) -> RankRows:
    return RankRows(
        row_starts=np.asarray(rows.row_starts, np.int64),
        positions=rows.positions,
        slots=np.asarray(rows.slots, np.int64),
        page_starts=np.asarray(rows.pages.starts, np.int64),
        page_blocks=rows.pages.blocks,
        page_visible=rows.pages.visible,
        masks=[
            RankRowMask(row=row, shown=np.ascontiguousarray(mask).view(np.uint8))
            for row, mask in rows.masks.items()
        ],
        adapters=rows.adapters,
    )


def unpack_rows(rows: RankRows, pool: KVPool) -> AttentionRows:
    return AttentionRows(
        row_starts=rows.row_starts,
        positions=rows.positions,
        slots=rows.slots.copy(),
        pages=PageLists(rows.page_starts, rows.page_blocks, rows.page_visible),
        slot_positions=pool.positions_AS[0],
        page_size=pool.page_size,
        masks={mask.row: mask.shown.view(np.bool_) for mask in rows.masks},
        adapters=rows.adapters,
    )
