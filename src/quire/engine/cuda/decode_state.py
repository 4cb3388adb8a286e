"""The state of decoding rows on the device: next inputs, ends, sampled tokens.

Fixed memory that recorded steps read and write. Every operation has a fixed shape and returns
nothing to the host, so a message of many steps needs the host once, at its end.

Shapes: B rows of a bucket, S steps, W stop tokens of a row, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.cuda.optional import load_kernels
from quire.engine.cuda.upload import upload
from quire.engine.model_runner import FusedRows, FusedTokens
from quire.engine.sequences import NO_TOKEN

I64 = NDArray[np.int64]

_BLOCK = 128
"""Rows that the kernel processes at a time."""


class DecodeState:
    """The fixed memory of up to ``num_rows`` rows, ``num_steps`` steps and ``num_stops`` stop
    tokens. A row that is not live writes its K and V to ``idle_slot`` and samples nothing."""

    def __init__(
        self, num_rows: int, num_steps: int, num_stops: int, idle_slot: int, device: torch.device
    ) -> None:
        self.max_rows, self.max_steps, self.max_stops = num_rows, num_steps, num_stops
        self._idle_slot = idle_slot
        self._device = device

        def whole(*shape: int, dtype: torch.dtype = torch.int64, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=dtype, device=device)

        self.tokens_B = whole(num_rows)
        self.positions_B = whole(num_rows, dtype=torch.int32)
        self.slots_B = whole(num_rows, fill=idle_slot)
        self._slots_SB = whole(num_steps + 1, num_rows, fill=idle_slot)
        self._steps_B = whole(num_rows)
        self._min_steps_B = whole(num_rows)
        self._stops_BW = whole(num_rows, num_stops, fill=NO_TOKEN)
        self._live_B = whole(num_rows, dtype=torch.bool)
        self._failed_B = whole(num_rows, dtype=torch.bool)
        self._step_1 = whole(1)
        self._out_SB = whole(num_steps, num_rows, fill=NO_TOKEN)

    def holds(self, rows: FusedRows) -> bool:
        """Whether the memory is large enough."""
        return (
            len(rows.tokens_R) <= self.max_rows
            and rows.num_steps <= self.max_steps
            and rows.stop_tokens_RW.shape[1] <= self.max_stops
        )

    def rest(self) -> None:
        """Reset: no row is live and no step has been made; also used before recording."""
        self._live_B.zero_()
        self._failed_B.zero_()
        self._step_1.zero_()
        self.slots_B.fill_(self._idle_slot)

    def begin(self, rows: FusedRows, size: int) -> None:
        """Fill the memory for these rows in a bucket of ``size``."""
        num_rows, num_steps = len(rows.tokens_R), rows.num_steps
        slots_SB = np.full((num_steps + 1, size), self._idle_slot, np.int64)
        slots_SB[:num_steps, :num_rows] = rows.slots_RS.T
        stops_BW = np.full((size, self.max_stops), NO_TOKEN, np.int64)
        stops_BW[:num_rows, : rows.stop_tokens_RW.shape[1]] = rows.stop_tokens_RW
        values = upload(
            {
                "tokens": _padded(rows.tokens_R, size),
                "positions": _padded(rows.rows.positions, size),
                "slots": slots_SB,
                "stops": stops_BW,
                "steps": _padded(rows.steps_R, size),
                "min_steps": _padded(rows.min_steps_R, size),
            },
            self._device,
        )
        self.tokens_B[:size] = values["tokens"]
        self.positions_B[:size] = values["positions"]
        self._slots_SB[: num_steps + 1, :size] = values["slots"]
        self._stops_BW[:size] = values["stops"]
        self._steps_B[:size] = values["steps"]
        self._min_steps_B[:size] = values["min_steps"]
        self.rest()
        live_B = values["steps"] > 0
        self._live_B[:size] = live_B
        self._out_SB[:, :size] = NO_TOKEN
        self.slots_B[:size] = values["slots"][0].masked_fill(~live_B, self._idle_slot)

    def place(self, tokens_R: I64, positions_R: I32, slots_R: I64, size: int) -> None:
        """Fill the memory for one step of these rows in a bucket of ``size``; the host samples."""
        slots_B = np.full(size, self._idle_slot, np.int64)
        slots_B[: len(slots_R)] = slots_R
        values = upload(
            {
                "tokens": _padded(tokens_R, size),
                "positions": _padded(positions_R, size),
                "slots": slots_B,
            },
            self._device,
        )
        self.tokens_B[:size] = values["tokens"]
        self.positions_B[:size] = values["positions"]
        self.slots_B[:size] = values["slots"]

    def without_early_stops(self, logits_BV: Tensor) -> Tensor:
        """Logits in which the stop tokens of rows that may not end yet are excluded."""
        size = len(logits_BV)
        stops_BW = self._stops_BW[:size]
        early_BW = (self._min_steps_B[:size] > self._step_1)[:, None] & (stops_BW >= 0)
        early_BW &= stops_BW < logits_BV.shape[1]
        bound_BW = logits_BV.new_full(early_BW.shape, torch.inf).masked_fill(early_BW, -torch.inf)
        return logits_BV.scatter_reduce(1, stops_BW.masked_fill(~early_BW, 0), bound_BW, "amin")

    def sampled_positions(self, size: int) -> Tensor:
        """Positions of the tokens sampled in this step, int64 ``[B]``."""
        return self.positions_B[:size].long() + 1

    def settle(self, tokens_B: Tensor, chosen_B: Tensor) -> None:
        """End a step: record the tokens, decide which rows go on, and set up the next step."""
        size = len(tokens_B)
        live_B = self._live_B[:size]
        good_B = live_B & chosen_B
        self._failed_B[:size] |= live_B & ~chosen_B
        out_B = tokens_B.masked_fill(~good_B, NO_TOKEN)
        self._out_SB[:, :size].index_copy_(0, self._step_1, out_B[None])
        self._step_1 += 1
        stopped_B = (self._stops_BW[:size] == tokens_B[:, None]).any(dim=1)
        next_B = good_B & ~stopped_B & (self._steps_B[:size] > self._step_1)
        slots_B = self._slots_SB[:, :size].index_select(0, self._step_1)[0]
        self.tokens_B[:size] = torch.where(next_B, tokens_B, self.tokens_B[:size])
        self.positions_B[:size] += next_B
        self.slots_B[:size] = slots_B.masked_fill(~next_B, self._idle_slot)
        self._live_B[:size] = next_B

    def settle_best(self, tokens_B: Tensor, best_B: Tensor) -> None:
        """``settle`` with the best tokens of these logits, chosen where finite. One launch where
        there is a device, because launching the single operations would take longer than running
        them."""
        if self._device.type != "cuda":
            self.settle(tokens_B, torch.isfinite(best_B))
        else:
            self.launch_settle(tokens_B, best_B)

    def launch_settle(self, tokens_B: Tensor, best_B: Tensor) -> None:
        """``settle_best`` by the kernel."""
        assert tokens_B.is_contiguous(), "the tokens are not contiguous"
        assert best_B.is_contiguous(), "the best logits are not contiguous"
        load_kernels("decode_state").settle_kernel[(1,)](
            tokens_B,
            best_B,
            self.tokens_B,
            self.positions_B,
            self.slots_B,
            self._slots_SB,
            self._steps_B,
            self._stops_BW,
            self._live_B.view(torch.uint8),
            self._failed_B.view(torch.uint8),
            self._step_1,
            self._out_SB,
            len(tokens_B),
            self.max_rows,
            self._idle_slot,
            MAX_STOPS=self.max_stops,
            STOPS_PADDED=1 << (self.max_stops - 1).bit_length(),
            BLOCK=_BLOCK,
            NUM_BLOCKS=-(-len(tokens_B) // _BLOCK),
        )

    def finish(self, rows: FusedRows, num_steps: int) -> FusedTokens:
        """The tokens sampled in ``num_steps`` steps; waits for the device."""
        num_rows = len(rows.tokens_R)
        out_SB = self._out_SB[:num_steps, :num_rows]
        host: I64 = torch.cat((out_SB, self._failed_B[None, :num_rows])).cpu().numpy()
        tokens_SR = host[:-1]
        counts_R: I64 = (tokens_SR != NO_TOKEN).sum(axis=0)
        last_R = tokens_SR[counts_R - 1, np.arange(num_rows)]  # NO_TOKEN for rows without tokens
        is_stop_RW = (rows.stop_tokens_RW == last_R[:, None]) & (last_R != NO_TOKEN)[:, None]
        return FusedTokens(tokens_SR, counts_R, is_stop_RW.any(axis=1), host[-1] != 0)


def _padded(values: NDArray[np.integer], size: int) -> NDArray[np.integer]:
    padded = np.zeros(size, values.dtype)
    padded[: len(values)] = values
    return padded
