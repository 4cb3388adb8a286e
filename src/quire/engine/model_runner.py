"""The step loop's interface to the code that runs the model over one step's tokens.

A runner owns the model's weights, the cache and their memory layout. It knows no commands, and of
sequences only ``FusedRows`` or the columns of ``SequenceState``. ``quire.engine.torch_runner``
defines the results; others must equal it.

Shapes: T new tokens, R decoding rows, S steps, N chosen tokens, H hidden size, V vocabulary, W stop
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32, AdvanceRows
from quire.core.batch_result import SequenceTokens
from quire.engine.attention.backend import AttentionRows
from quire.engine.attention.scored_rows import AttentionMass
from quire.engine.embed_slots import EmbedSlots
from quire.engine.kv_cache.page_tables import PageTables
from quire.engine.kv_cache.pool import KVPool
from quire.engine.sampling.plan import CommonParameters, SamplingPlan
from quire.engine.sampling.table import SamplerTable
from quire.engine.sequences import Sequences

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class StepPlan(Protocol):
    """Rows of one new token each that advance together, step after step."""

    def advance(self, slots_R: I64, positions_R: I32) -> None:
        """Begin a step: set the slot and position of each row's new token."""
        ...

    def keep(self, rows: I64) -> None:
        """Keep only these rows, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class FusedRows:
    """Rows that decode several steps in one call, each step a forward pass, a choice and a stop
    check.

    ``rows`` has one token per row, that of the first step. ``tokens_R`` are these tokens;
    ``cursors_R`` and ``slots_RS``: where each step's token is appended, as slots of the row's
    table and of the pool (clipped at the row's limit). ``steps_R``: the most tokens that a row
    samples, at least one; free slots, model length and token limit are taken into account.
    ``stop_tokens_RW`` end a row, padded with ``NO_TOKEN``; in its first ``min_steps_R`` steps they
    are excluded.
    """

    rows: AttentionRows
    tokens_R: I64
    cursors_R: I64
    slots_RS: I64
    steps_R: I64
    stop_tokens_RW: I64
    min_steps_R: I64
    sampling: SamplingPlan

    @property
    def num_steps(self) -> int:
        return int(self.slots_RS.shape[1])


@dataclass(frozen=True, slots=True)
class FusedTokens:
    """``tokens_SR``, ``NO_TOKEN`` where a row had ended · ``counts_R`` tokens sampled by each row ·
    ``stopped_R`` whether its last token is one of its stop tokens · ``failed_R`` whether no token
    could be chosen in the step after these (whose forward pass did run) · ``is_revealed`` whether
    the bits of the appended slots have been set in the tables."""

    tokens_SR: I64
    counts_R: I64
    stopped_R: NDArray[np.bool_]
    failed_R: NDArray[np.bool_]
    is_revealed: bool = False


@dataclass(frozen=True, slots=True)
class SequenceState:
    """The engine's columns of its sequences, for a runner that advances sequences itself.

    A token at position ``max_model_len`` or higher is not run.
    """

    sequences: Sequences
    samplers: SamplerTable
    tables: PageTables
    max_model_len: int


@dataclass(frozen=True, slots=True)
class AdvanceResult:
    """A message's answer, the number of tokens that were run, and the number of sequences that
    ended as FAILED because no token could be chosen."""

    answer: SequenceTokens
    num_tokens: int
    num_failed: int


class ModelRunner(Protocol):
    """One model with its cache and embed slots, on one device, for the life of its engine.

    ``serves_scores``: ``run_rows`` fills the ``mass`` that it is given; otherwise it must be given
    none.
    """

    serves_scores: bool

    @property
    def pool(self) -> KVPool: ...

    @property
    def embeds(self) -> EmbedSlots: ...

    @property
    def details(self) -> dict[str, Any]:
        """Entries for the engine's description of how the model is run."""
        ...

    def embed(self, tokens_N: I64) -> Tensor:
        """Input embeddings ``[N, H]``."""
        ...

    def run_rows(
        self,
        rows: AttentionRows,
        tokens_T: I64,
        embeds_T: I32,
        mass: AttentionMass | None = None,
    ) -> Tensor:
        """Hidden states ``[T, H]`` of ragged rows; writes their K, V and positions.

        ``embeds_T``: embed slot that replaces the token's embedding, or -1. ``mass``: attention
        mass of some of these rows, to be added to; it changes no hidden state.
        """
        ...

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> StepPlan:
        """Plan up to ``num_steps`` steps. ``rows`` has one token per row, that of the first step;
        call ``advance`` before each step, including the first. The bits of appended slots are set
        in the tables before the next step."""
        ...

    def run_decode(self, plan: Any, tokens_R: I64, positions_R: I32, slots_R: I64) -> Tensor:
        """Hidden states ``[R, H]`` of one token per row, under a plan of this runner whose
        ``advance`` was called for this step."""
        ...

    def decode_fused(self, rows: FusedRows) -> FusedTokens | None:
        """Run the whole loop in one call; None if this runner does not support it, or not for these
        rows.

        The result states whether the bits of appended slots were set in the tables, or are left to
        the caller.
        """
        ...

    def advance(
        self, rows: AdvanceRows, num_steps: int, state: SequenceState
    ) -> AdvanceResult | None:
        """A message that only advances sequences, in one call: the work of ``DecodeStage`` around
        ``decode_fused``, with the same results in ``state``.

        None, with nothing done, if this runner does not support it, or a sequence is not open, is
        named twice, has a limit beyond its pages, or must run and is not plain. ``rows`` names at
        least one sequence, and its columns have one length.
        """
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Logits ``[N, V]`` in float32."""
        ...

    def choose(self, hidden_NH: Tensor, samplers: CommonParameters, positions_N: I64) -> I64 | None:
        """A token after each hidden state, ``NO_TOKEN`` where none can be chosen; None if this
        runner leaves that to ``SamplingPlan``. ``positions_N`` are those of the tokens."""
        ...

    def best(self, hidden_NH: Tensor, k: int) -> tuple[I32, F32] | None:
        """``best_of_logits`` after each hidden state ``[N, K]``; None if this runner leaves that to
        the caller. ``k`` is at most V."""
        ...

    def to_device(self, array: NDArray[np.integer]) -> Tensor:
        """An index tensor (int64) of a host array, where the runner's tensors are."""
        ...
