"""The pool of a group of ranks: every rank has the same slots, each for its own KV heads.

Owns how the heads of a token are divided and put together again.
"""

from __future__ import annotations

import numpy as np
import torch

from quire.core.batch import I32
from quire.engine.kv_cache.token_form import I64, U8, RawTokens, TokenForm
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.parallel import messages as m
from quire.engine.parallel.group import RankGroup

_BYTES = torch.uint8


class LeadingPool:
    """Implements ``KVPool`` and ``TokenPool`` over the ranks of ``group``; ``pool`` is rank 0's
    own. ``num_kv_heads``: of the undivided model. Several ranks have the same head if there are
    fewer heads than ranks.

    Raises (every call):
        EngineFault: a rank has ended.
    """

    def __init__(self, pool: TorchKVPool, group: RankGroup, num_kv_heads: int) -> None:
        self._pool = pool
        self._group = group
        self._own = pool.form
        self.form = TokenForm(
            self._own.num_layers, num_kv_heads, self._own.head_dim, self._own.dtype
        )
        self.raw: RawTokens | None = None
        self.shape, self.page_size = pool.shape, pool.page_size
        self.num_blocks, self.num_host_blocks = pool.num_blocks, pool.num_host_blocks
        self.num_slots, self.first_scratch = pool.num_slots, pool.first_scratch
        self.null_slot, self.positions_AS = pool.null_slot, pool.positions_AS
        self.host_positions_AS = pool.host_positions_AS

    def copy_slots(self, source: I32, target: I32) -> None:
        with self._group.guard():
            self._group.tell(m.RankCopySlots(source=source, target=target))
        self._pool.copy_slots(source, target)

    def reposition(self, slots: I32, positions: I32) -> None:
        with self._group.guard():
            self._group.tell(m.RankReposition(slots=slots, positions=positions))
        self._pool.reposition(slots, positions)

    def swap_out(self, blocks: I32, host_blocks: I32) -> None:
        with self._group.guard():
            self._group.tell(m.RankSwapOut(blocks=blocks, host_blocks=host_blocks))
        self._pool.swap_out(blocks, host_blocks)

    def swap_in(self, host_blocks: I32, blocks: I32) -> None:
        with self._group.guard():
            self._group.tell(m.RankSwapIn(host_blocks=host_blocks, blocks=blocks))
        self._pool.swap_in(host_blocks, blocks)

    # -- tokens, for the data plane ----------------------------------------------------------------

    def read_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots and layers, every rank's heads."""
        self._read(slots, layers, tokens, on_host=False)

    def read_host_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots of host blocks and layers, every
        rank's heads."""
        self._read(slots, layers, tokens, on_host=True)

    def _read(self, slots: I64, layers: range, tokens: U8, *, on_host: bool) -> None:
        own = np.empty(len(slots) * len(layers) * self._own.bytes_per_layer, np.uint8)
        calls = [
            m.ReadTokens(
                num_calls=self._group.num_calls,
                slots=slots,
                first_layer=layers.start,
                num_layers=len(layers),
                on_host=on_host,
            )
        ] * (self._group.size - 1)
        read = self._pool.read_host_tokens if on_host else self._pool.read_tokens
        others = self._group.ask_tokens(calls, lambda: read(slots, layers, own))
        whole_L2TKD = self.form.view(tokens, len(layers))
        for rank, part in enumerate((own, *(one.tokens.copy() for one in others))):
            first, end = self._heads(rank)
            whole_L2TKD[..., first:end, :].copy_(self._own.view(part, len(layers)))

    def write_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Write ``tokens``, in canonical form, to these slots and layers of all ranks."""
        parts = [self._part(rank, tokens, layers) for rank in range(self._group.size)]
        calls = [
            m.WriteTokens(
                num_calls=self._group.num_calls,
                slots=slots,
                first_layer=layers.start,
                num_layers=len(layers),
                tokens=part,
            )
            for part in parts[1:]
        ]
        self._group.ask_tokens(calls, lambda: self._pool.write_tokens(slots, layers, parts[0]))

    def place(self, slots: I64, positions_AT: I32) -> None:
        """Set the positions of slots on all ranks."""
        call = m.PlaceTokens(num_calls=self._group.num_calls, slots=slots, positions=positions_AT)
        self._group.ask_tokens(
            [call] * (self._group.size - 1), lambda: self._pool.place(slots, positions_AT)
        )

    def _heads(self, rank: int) -> tuple[int, int]:
        """The first head of a rank among those of the model, and the one after its last."""
        first = rank * self.form.num_kv_heads // self._group.size
        return first, first + self._own.num_kv_heads

    def _part(self, rank: int, tokens: U8, layers: range) -> U8:
        """The bytes of one rank's heads."""
        first, end = self._heads(rank)
        part_L2TKD = self.form.view(tokens, len(layers))[..., first:end, :].contiguous()
        part: U8 = part_L2TKD.view(-1).view(_BYTES).numpy()
        return part
