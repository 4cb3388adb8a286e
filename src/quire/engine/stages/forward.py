"""Stage 3 of a message: checks forward rows and merges them with the decode rows into one ragged
batch.

Owns validation of rows, explicit masks and the requested scores. An invalid row is left out; the
others are executed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import ExplicitMask, ForwardRows
from quire.core.errors import InvalidArgument, QuireError
from quire.engine.adapters.token_groups import adapters_or_none, check_adapter
from quire.engine.attention.backend import AttentionRows
from quire.engine.embed_slots import EmbedSlots, TokenSlots
from quire.engine.failures import RowFailures, check_message
from quire.engine.kv_cache.page_tables import UNKNOWN_TABLE, PageTables, TablePages
from quire.engine.kv_cache.pool import KVPool
from quire.engine.sequences import Sequences

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForwardLimits:
    vocab_size: int
    max_model_len: int
    max_batch_tokens: int
    num_axes: int
    num_adapters: int = 0
    serves_scores: bool = False


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The executable rows of a ``ForwardRows``. ``kept``: their indices in the message,
    ``tokens_of``: their tokens.

    ``values`` [T]: token ids with token slots resolved. ``tokens``: indices of the message's
    tokens. ``tables``: rows of the page tables.
    """

    kept: I64
    tables: I64
    row_starts: I64
    tokens: I64
    values: I64
    masks: dict[int, NDArray[np.bool_]]


class ForwardStage:
    """Validates and assembles forward rows."""

    def __init__(
        self,
        pool: KVPool,
        tables: PageTables,
        sequences: Sequences,
        embeds: EmbedSlots,
        token_slots: TokenSlots,
        limits: ForwardLimits,
    ) -> None:
        self._pool = pool
        self._tables = tables
        self._sequences = sequences
        self._embeds = embeds
        self._token_slots = token_slots
        self._limits = limits

    def check(self, rows: ForwardRows, failures: RowFailures) -> CheckedRows:
        """The rows that can be executed; the others are reported.

        Raises:
            EngineFault: arrays that do not fit each other.
        """
        self._check_shapes(rows)
        values = self._token_slots.resolve(rows.tokens)
        token_ok = self._token_ok(rows, values)
        starts = rows.row_starts.astype(np.int64)
        row_ok = np.logical_and.reduceat(token_ok, starts[:-1]) if len(starts) > 1 else token_ok
        tables = self._tables.find_rows(rows.tables)
        good = row_ok & (tables != UNKNOWN_TABLE) & self._names_open_sequences(rows)
        good &= self._names_known_adapters(rows)
        if len(rows.attention_rows) and not self._limits.serves_scores:
            good[rows.attention_rows] = False
        for row in np.flatnonzero(~good).tolist():
            failures.add("forward", row, self._row_error(rows, values, row, bool(row_ok[row])))
        masks = self._unpack_masks(rows, tables, good, failures)
        kept_R = np.flatnonzero(good)
        lengths = np.diff(starts)[kept_R]
        tokens = np.flatnonzero(np.repeat(good, np.diff(starts)))
        return CheckedRows(
            kept=kept_R,
            tables=tables[kept_R],
            row_starts=np.concatenate(([0], np.cumsum(lengths))),
            tokens=tokens,
            values=np.maximum(values[tokens], 0),
            masks={place: masks[row] for place, row in enumerate(kept_R.tolist()) if row in masks}
            if masks
            else {},
        )

    def attention_rows(
        self, rows: ForwardRows, checked: CheckedRows, decoding_R: I64, slots_R: I64
    ) -> AttentionRows:
        """The checked rows followed by one row per decoding sequence, as input of attention."""
        slots = rows.slots[0, checked.tokens].astype(np.int64)
        scratch = self._pool.first_scratch + np.arange(len(slots))
        slots = np.where(slots < 0, scratch, slots)
        num_tokens = len(slots)
        tables = np.concatenate((checked.tables, self._sequences.table[decoding_R]))
        positions = np.concatenate(
            (rows.positions[0, checked.tokens], self._sequences.position[decoding_R])
        )
        starts = num_tokens + 1 + np.arange(len(decoding_R))
        return AttentionRows(
            row_starts=np.concatenate((checked.row_starts, starts)),
            positions=positions.astype(np.int32),
            slots=np.concatenate((slots, slots_R)),
            pages=TablePages(self._tables, tables),
            slot_positions=self._pool.positions_AS[0],
            page_size=self._pool.page_size,
            masks=checked.masks,
            adapters=adapters_or_none(
                rows.adapters[checked.kept] if len(rows.adapters) else [-1] * len(checked.kept),
                self._sequences.adapter[decoding_R],
            ),
        )

    def _check_shapes(self, rows: ForwardRows) -> None:
        num_rows, num_tokens = len(rows.row_starts) - 1, len(rows.tokens)
        per_token = [rows.embeds, rows.outputs]
        if len(rows.score_targets):
            per_token.append(rows.score_targets)
        check_message(all(len(a) == num_tokens for a in per_token), "token arrays differ")
        check_message(
            len(rows.tables) == len(rows.sequences) == num_rows, "row arrays differ in length"
        )
        check_message(len(rows.adapters) in (0, num_rows), "adapters of other rows")
        check_message(rows.positions.shape == (self._limits.num_axes, num_tokens), "positions")
        check_message(rows.slots.shape == (1, num_tokens), "slots: this engine has one layer group")
        starts = rows.row_starts
        check_message(
            num_rows >= 0 and starts[0] == 0 and starts[-1] == num_tokens, "row_starts and tokens"
        )
        check_message(bool((np.diff(starts) > 0).all()), "a row without tokens")
        scored = rows.attention_rows
        check_message(
            not len(scored)
            or bool((np.diff(scored) > 0).all() and scored[0] >= 0 and scored[-1] < num_rows),
            "attention_rows",
        )

    def _token_ok(self, rows: ForwardRows, values: I64) -> NDArray[np.bool_]:
        limits, pool = self._limits, self._pool
        ok = (rows.embeds >= 0) | ((values >= 0) & (values < limits.vocab_size))
        ok &= (rows.embeds >= -1) & (rows.embeds < self._embeds.num_embeds)
        ok &= (rows.outputs >= -1) & (rows.outputs < self._embeds.num_embeds)
        ok &= ((rows.positions >= 0) & (rows.positions < limits.max_model_len)).all(axis=0)
        ok &= (rows.slots[0] >= -1) & (rows.slots[0] < pool.num_slots)
        if len(rows.score_targets):
            ok &= (rows.score_targets >= -1) & (rows.score_targets < limits.vocab_size)
        ok &= np.arange(len(ok)) < limits.max_batch_tokens
        return ok

    def _token_error(self, rows: ForwardRows, values: I64, row: int) -> InvalidArgument:
        span = slice(int(rows.row_starts[row]), int(rows.row_starts[row + 1]))
        limits = self._limits
        named: dict[str, tuple[NDArray[np.integer], int, int]] = {
            "token ids": (values[span][rows.embeds[span] < 0], 0, limits.vocab_size),
            "positions": (rows.positions[:, span], 0, limits.max_model_len),
            "input embeds": (rows.embeds[span], -1, self._embeds.num_embeds),
            "output embeds": (rows.outputs[span], -1, self._embeds.num_embeds),
            "slots": (rows.slots[0, span], -1, self._pool.num_slots),
            "score targets": (rows.score_targets[span], -1, limits.vocab_size),
        }
        for name, (array, low, high) in named.items():
            if array.size and not (array.min() >= low and array.max() < high):
                return InvalidArgument(
                    f"forward row {row}: {name} {int(array.min())}..{int(array.max())} are outside "
                    f"{max(low, 0)}..{high - 1}"
                )
        return InvalidArgument(
            f"forward row {row} ends at token {span.stop} of the step; at most "
            f"{limits.max_batch_tokens} fit: send shorter chunks"
        )

    def _names_open_sequences(self, rows: ForwardRows) -> NDArray[np.bool_]:
        return (rows.sequences < 0) | self._sequences.are_open(rows.sequences)

    def _names_known_adapters(self, rows: ForwardRows) -> NDArray[np.bool_]:
        return np.array(
            (rows.adapters >= -1) & (rows.adapters < self._limits.num_adapters)
            if len(rows.adapters)
            else True
        )

    def _row_error(self, rows: ForwardRows, values: I64, row: int, tokens_ok: bool) -> QuireError:
        """The error of a row that cannot be executed."""
        if not tokens_ok:
            return self._token_error(rows, values, row)
        if row in rows.attention_rows and not self._limits.serves_scores:
            return InvalidArgument(
                f"forward row {row} asks for attention scores, which this engine does not return"
            )
        try:
            if len(rows.adapters):
                check_adapter(int(rows.adapters[row]), self._limits.num_adapters)
            if rows.tables[row] >= 0:
                self._tables.row(int(rows.tables[row]))
            self._sequences.check_open(int(rows.sequences[row]))
        except QuireError as exc:
            return exc
        raise AssertionError(f"row {row} was refused without a reason")

    def _unpack_masks(
        self, rows: ForwardRows, tables: I64, good: NDArray[np.bool_], failures: RowFailures
    ) -> dict[int, NDArray[np.bool_]]:
        """Explicit masks by row of the message; a mask of the wrong size fails its row."""
        masks = {}
        for mask in rows.masks:
            if not (0 <= mask.row < len(good) and good[mask.row]):
                continue
            try:
                masks[mask.row] = self._unpack(rows, mask, int(tables[mask.row]))
            except QuireError as exc:
                failures.add("forward", mask.row, exc)
                good[mask.row] = False
        return masks

    def _unpack(self, rows: ForwardRows, mask: ExplicitMask, table: int) -> NDArray[np.bool_]:
        num_new = int(rows.row_starts[mask.row + 1] - rows.row_starts[mask.row])
        num_pages = int(self._tables.num_pages_T[table]) if table >= 0 else 0
        wanted = num_pages * self._pool.page_size + num_new
        if mask.num_columns != wanted or mask.bits.size != (num_new * wanted + 7) // 8:
            raise InvalidArgument(
                f"the mask of forward row {mask.row} has {mask.num_columns} columns in "
                f"{mask.bits.size} bytes; its {num_pages} pages and {num_new} new tokens make "
                f"{wanted} columns"
            )
        flat = np.unpackbits(mask.bits.reshape(-1), count=num_new * wanted)
        return flat.reshape(num_new, wanted).astype(np.bool_)
