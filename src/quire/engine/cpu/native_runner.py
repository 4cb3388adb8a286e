"""The CPU kernel's runner: a step is one call into the library.

Owns the kernel's model and passes it the step's arrays without copying. Embed slots and hidden
states are PyTorch tensors that the kernel reads and writes in place.

Shapes: T new tokens, R decoding rows, N chosen tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32, AdvanceRows
from quire.engine.attention.backend import AttentionRows
from quire.engine.attention.scored_rows import AttentionMass
from quire.engine.cpu.advance_arguments import AdvanceArguments
from quire.engine.cpu.decode_abi import ChoiceRows
from quire.engine.cpu.decode_arguments import DecodeArguments
from quire.engine.cpu.model_abi import SIGNATURES, RowMask, ScoredRow, ScoredRows, StepArguments
from quire.engine.cpu.native_pool import NativeKVPool
from quire.engine.cpu.native_progress import NativeProgress
from quire.engine.cpu.packed_decoder import PackedDecoder
from quire.engine.cpu.team import Team
from quire.engine.embed_slots import EmbedSlots
from quire.engine.kv_cache.page_tables import TablePages
from quire.engine.model_runner import F32, AdvanceResult, FusedRows, FusedTokens, SequenceState
from quire.engine.sampling.plan import CommonParameters

I64 = NDArray[np.int64]


class NativeDecodePlan:
    """The page tables of rows that advance together; the kernel reads them anew in every step."""

    def __init__(self, pages: TablePages, adapters_R: I32 | None = None) -> None:
        self.pages = pages
        self.adapters_R = adapters_R

    def advance(self, slots_R: I64, positions_R: I32) -> None:
        """Do nothing: a step needs no preparation."""

    def keep(self, rows: I64) -> None:
        self.pages = TablePages(self.pages.tables, self.pages.rows_R[rows])
        if self.adapters_R is not None:
            self.adapters_R = self.adapters_R[rows]


class NativeRunner:
    """``ModelRunner`` on the CPU kernel."""

    serves_scores = True

    def __init__(
        self, model: PackedDecoder, pool: NativeKVPool, embeds: EmbedSlots, team: Team
    ) -> None:
        self.pool = pool
        self.embeds = embeds
        self.team = team
        self._model = model
        self._hidden_size = int(model.spec.hidden_size)
        self._vocab_size = int(model.spec.vocab_size)
        self._native = team.library.native
        self._decode_arguments = DecodeArguments()
        self._advance_arguments: AdvanceArguments | None = None
        team.library.declare(SIGNATURES)
        self._handle = self._native.quire_model_create(model.spec, team.handle)
        if self._handle is None:
            raise MemoryError("the kernel's model")
        self._close = weakref.finalize(
            self, _destroy, self._native, self._handle, team, (model, pool)
        )

    def close(self) -> None:
        """Free the kernel's model and its threads; may be repeated."""
        self._close()

    @property
    def details(self) -> dict[str, Any]:
        return {
            "num_threads": self.team.num_threads,
            "kernel_isa": self.team.library.isa,
            "weights": self._model.weight_type.name.lower(),
        }

    def new_progress(self) -> NativeProgress:
        return NativeProgress(self.team.library)

    def watch(self, progress: NativeProgress | None, base: int) -> None:
        """See ``LayerCounter``."""
        handle = None if progress is None else progress.handle
        self._native.quire_model_watch(self._handle, handle, base)

    def embed(self, tokens_N: I64) -> Tensor:
        """Input embeddings ``[N, H]``."""
        tokens_N = np.ascontiguousarray(tokens_N, np.int64)
        vectors_NH = torch.empty(len(tokens_N), self._hidden_size)
        self._native.quire_model_embed(
            self._handle, tokens_N.ctypes.data, len(tokens_N), vectors_NH.data_ptr()
        )
        return vectors_NH

    def run_rows(
        self,
        rows: AttentionRows,
        tokens_T: I64,
        embeds_T: I32,
        mass: AttentionMass | None = None,
    ) -> Tensor:
        """Hidden states ``[T, H]`` of ragged rows; writes their K, V and positions."""
        assert isinstance(rows.pages, TablePages)
        masks = [RowMask(row, mask.shape[1], mask.ctypes.data) for row, mask in rows.masks.items()]
        return self._run(
            rows.pages,
            np.ascontiguousarray(rows.row_starts, np.int64),
            tokens_T,
            rows.positions,
            rows.slots,
            embeds_T=embeds_T,
            masks=(RowMask * len(masks))(*masks),
            adapters_R=rows.adapters,
            mass=mass,
        )

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> NativeDecodePlan:
        assert isinstance(rows.pages, TablePages)
        return NativeDecodePlan(rows.pages, rows.adapters)

    def run_decode(
        self, plan: NativeDecodePlan, tokens_R: I64, positions_R: I32, slots_R: I64
    ) -> Tensor:
        """Hidden states ``[R, H]`` of one token per row."""
        starts = np.arange(len(tokens_R) + 1, dtype=np.int64)
        return self._run(
            plan.pages, starts, tokens_R, positions_R, slots_R, adapters_R=plan.adapters_R
        )

    def decode_fused(self, rows: FusedRows) -> FusedTokens | None:
        """The whole loop in one call of the library."""
        if rows.sampling.common is None or not isinstance(rows.rows.pages, TablePages):
            return None
        done = self._decode_arguments.fill(rows, rows.sampling.common, rows.rows.pages)
        self._check(self._native.quire_model_decode(self._handle, self._decode_arguments.struct))
        return done

    def advance(
        self, rows: AdvanceRows, num_steps: int, state: SequenceState
    ) -> AdvanceResult | None:
        """The whole message in one call of the library."""
        arguments = self._advance_arguments
        if arguments is None or arguments.state is not state:
            arguments = self._advance_arguments = AdvanceArguments(state)
        arguments.fill(rows, num_steps)
        self._check(
            self._native.quire_model_advance(self._handle, arguments.message, arguments.columns)
        )
        return arguments.result()

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Logits ``[N, V]`` in float32."""
        hidden_NH = hidden_NH.contiguous()
        logits_NV = torch.empty(len(hidden_NH), self._vocab_size)
        self._check(
            self._native.quire_model_logits(
                self._handle, hidden_NH.data_ptr(), len(hidden_NH), logits_NV.data_ptr()
            )
        )
        return logits_NV

    def choose(self, hidden_NH: Tensor, samplers: CommonParameters, positions_N: I64) -> I64 | None:
        """A token after each hidden state, in one call of the library."""
        hidden_NH = hidden_NH.contiguous()
        positions_N = np.ascontiguousarray(positions_N, np.int64)
        tokens_N = np.empty(len(hidden_NH), np.int64)
        rows = ChoiceRows(
            num_rows=len(hidden_NH),
            greedy=samplers.greedy.ctypes.data,
            top_k=samplers.top_k.ctypes.data,
            temperature=samplers.temperature.ctypes.data,
            min_p=samplers.min_p.ctypes.data,
            top_p=samplers.top_p.ctypes.data,
            seeds=samplers.seeds.ctypes.data,
            positions=positions_N.ctypes.data,
            tokens=tokens_N.ctypes.data,
        )
        self._check(self._native.quire_model_choose(self._handle, hidden_NH.data_ptr(), rows))
        return tokens_N

    def best(self, hidden_NH: Tensor, k: int) -> tuple[I32, F32] | None:
        """The best tokens of the distribution after each hidden state, in one call of the
        library."""
        hidden_NH = hidden_NH.contiguous()
        ids_NK = np.empty((len(hidden_NH), k), np.int32)
        probs_NK = np.empty((len(hidden_NH), k), np.float32)
        status = self._native.quire_model_best(
            self._handle,
            hidden_NH.data_ptr(),
            len(hidden_NH),
            k,
            ids_NK.ctypes.data,
            probs_NK.ctypes.data,
        )
        self._check(status)
        return ids_NK, probs_NK

    def _check(self, status: int) -> None:
        self.team.check(status, "the step", "lower max_batch_tokens")

    def to_device(self, array: NDArray[np.integer]) -> Tensor:
        """An index tensor (int64) of a host array."""
        return torch.from_numpy(np.ascontiguousarray(array, np.int64))

    def _run(
        self,
        pages: TablePages,
        row_starts: I64,
        tokens_T: I64,
        positions_T: I32,
        slots_T: I64,
        *,
        embeds_T: I32 | None = None,
        masks: Any = (),
        adapters_R: I32 | None = None,
        mass: AttentionMass | None = None,
    ) -> Tensor:
        tables = pages.tables
        tables_R = np.ascontiguousarray(pages.rows_R, np.int64)
        tokens_T = np.ascontiguousarray(tokens_T, np.int64)
        positions_T = np.ascontiguousarray(positions_T, np.int32)
        slots_T = np.ascontiguousarray(slots_T, np.int64)
        vectors = adapters_T = None
        if adapters_R is not None:
            adapters_T = np.repeat(adapters_R.astype(np.int32), np.diff(row_starts))
        if embeds_T is not None:
            embeds_T = np.ascontiguousarray(embeds_T, np.int32)
            vectors = self.embeds.vectors_EH.data_ptr()
        step = StepArguments(
            num_rows=len(row_starts) - 1,
            num_tokens=len(tokens_T),
            row_starts=row_starts.ctypes.data,
            row_tables=tables_R.ctypes.data,
            positions=positions_T.ctypes.data,
            slots=slots_T.ctypes.data,
            masks=ctypes.addressof(masks) if len(masks) else None,
            num_masks=len(masks),
            tokens=tokens_T.ctypes.data,
            embeds=None if embeds_T is None else embeds_T.ctypes.data,
            vectors=vectors,
            adapters=None if adapters_T is None else adapters_T.ctypes.data,
            table_blocks=tables.blocks_TP.ctypes.data,
            table_visible=tables.visible_TP.ctypes.data,
            table_num_pages=tables.num_pages_T.ctypes.data,
            table_width=tables.blocks_TP.shape[1],
        )
        hidden_TH = torch.empty(len(tokens_T), self._hidden_size)
        if mass is None:
            status = self._native.quire_model_run(self._handle, step, hidden_TH.data_ptr())
        else:
            status = self._native.quire_model_run_scored(
                self._handle, step, _scored(mass), hidden_TH.data_ptr()
            )
        self._check(status)
        return hidden_TH


def _destroy(native: Any, handle: int, team: Team, kept: object) -> None:
    """Destroy the model, then its threads. ``kept`` holds the memory that the model points to."""
    native.quire_model_destroy(handle)
    team.close()


def _scored(mass: AttentionMass) -> ScoredRows:
    """The kernel's view of ``mass``, which keeps the arrays alive."""
    rows = [
        ScoredRow(
            first_token=row.first_token,
            num_tokens=len(row.positions_T),
            num_slots=len(row.slots_C),
            slots=row.slots_C.ctypes.data,
            positions=row.positions_C.ctypes.data,
            allowed=row.allowed_TC.ctypes.data,
            mass=mass.mass_LC.ctypes.data + start * mass.mass_LC.itemsize,
        )
        for row, start in zip(mass.rows, mass.starts.tolist(), strict=False)
    ]
    scored = ScoredRows(None, len(rows), mass.mass_LC.shape[1])
    scored.kept = (ScoredRow * len(rows))(*rows)
    scored.rows = ctypes.addressof(scored.kept)
    return scored
