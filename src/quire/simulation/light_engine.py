"""An engine that computes nothing: it reports the progress of each row and a modelled duration.

Owns the modelled time of a message and the state that results need: where sequences stand and when
they end. Token ids depend on seed and position alone, so that a reopened sequence continues with
the same tokens; they carry no meaning. Grammars, stop strings and stop tokens are ignored: only
``max_tokens`` bounds an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.batch import (
    F32,
    I32,
    Batch,
    BatchResult,
    CloseSequences,
    DistRows,
    ExtendSequence,
    OpenSequence,
    RowFailure,
    SampleRows,
    SequenceEnd,
    SequenceTokens,
    SwapIn,
    SwapOut,
    TransfersEnded,
)
from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.core.errors import EngineFault, ErrorRecord, InvalidArgument
from quire.core.ids import SequenceId
from quire.core.traits import Trait

_TRAITS = (Trait.ALLOCATE, Trait.FORWARD, Trait.INPUT_TEXT, Trait.SAMPLE, Trait.DECODE)
_SEED_STRIDE, _POSITION_STRIDE = 7919, 104729
"""Primes, so that neighbouring seeds and positions give different tokens."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a message in seconds: ``message_s`` per message, ``step_s`` per decode step,
    ``row_s`` per row of a step, ``context_token_s`` per token that a row attends to,
    ``prompt_token_s`` per prompt token, ``moved_block_s`` per block whose move between tiers
    begins. ``gap_s``: beside that, from the sending of a message to an idle engine until its result
    is read; what waits behind another message does not feel it."""

    message_s: float = 0.0005
    step_s: float = 0.008
    row_s: float = 0.0002
    context_token_s: float = 0.0
    prompt_token_s: float = 0.0001
    moved_block_s: float = 0.0
    gap_s: float = 0.0


def light_pool(
    *,
    num_blocks: int,
    num_host_blocks: int = 0,
    page_size: int = 16,
    max_sequences: int = 64,
    max_batch_tokens: int = 512,
    bytes_per_block: int = 1 << 16,
) -> PoolSpec:
    """A pool of one full-attention group."""
    group = LayerGroup(
        num_blocks=num_blocks, num_host_blocks=num_host_blocks, bytes_per_block=bytes_per_block
    )
    return PoolSpec(
        page_size=page_size,
        groups=(group,),
        num_embeds=4096,
        num_token_slots=4096,
        max_sequences=max_sequences,
        max_batch_tokens=max_batch_tokens,
    )


@dataclass(slots=True)
class _Sequence:
    """``cursor`` and ``limit`` in slots of its table, ``position`` of its next token. ``is_new``:
    nothing was sampled since it was opened; what the prompt's last token gives takes no slot until
    it is run, one step later."""

    epoch: int
    seed: int
    cursor: int
    limit: int
    position: int
    num_left: int
    is_new: bool = True
    end: SequenceEnd = SequenceEnd.RUNNING


class LightEngine:
    """An ``EngineCore`` that trusts its controller: messages that break the contract may go
    unnoticed. ``num_tokens``: tokens sampled by sequences since it was created."""

    def __init__(
        self,
        pool: PoolSpec,
        cost: StepCost | None = None,
        *,
        model: str = "light",
        vocab_size: int = 32_000,
        max_model_len: int = 1 << 20,
    ) -> None:
        self._info = EngineInfo(
            model=model,
            family="light",
            digest="light-1",
            vocab_size=vocab_size,
            hidden_size=1,
            num_layers=1,
            max_model_len=max_model_len,
            dtype="float32",
            device="cpu",
            backend="light",
            num_parameters=0,
            pool=pool,
            traits=sorted(trait.value for trait in _TRAITS),
        )
        self._cost = cost or StepCost()
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._moving: list[I32] = []
        self.num_tokens = 0
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    def close(self) -> None:
        self._closed = True

    def transfer(self) -> TransfersEnded | None:
        """End all transfers at once: their time was charged to the message that began them."""
        if not self._moving:
            return None
        moving, self._moving = self._moving, []
        return TransfersEnded(transfers=np.concatenate(moving))

    def execute(self, batch: Batch) -> BatchResult:
        """Run one message.

        Raises:
            EngineFault: it was closed before.
        """
        if self._closed:
            raise EngineFault("the engine is closed")
        num_moved = self._operate(batch)
        named = self._named(batch)
        runs = [self._advance(sequence, epoch, steps) for sequence, epoch, steps in named]
        counts = [len(tokens) for tokens, _ in runs]
        self.num_tokens += sum(counts)
        num_prompt = 0 if batch.forward is None else len(batch.forward.tokens)
        result = BatchResult(
            step=batch.step,
            elapsed_s=self._elapsed_s(named, counts, num_prompt)
            + self._cost.moved_block_s * num_moved,
            num_tokens=num_prompt + sum(counts),
            sequences=_report(named, runs) if named else None,
            failures=_unscored(batch),
        )
        if batch.dists is not None:
            _add_dists(result, batch.dists)
        if batch.samples is not None:
            result.samples = self._samples(batch.samples)
        return result

    def _operate(self, batch: Batch) -> int:
        """Carry out the operations; returns how many blocks begin to move."""
        num_moved = 0
        for operation in batch.operations:
            if isinstance(operation, OpenSequence):
                self._sequences[operation.sequence] = _Sequence(
                    epoch=operation.epoch,
                    seed=operation.sampler.seed or 0,
                    cursor=operation.cursor,
                    limit=operation.limit,
                    position=operation.position,
                    num_left=operation.stop.max_tokens - operation.num_generated,
                )
            elif isinstance(operation, ExtendSequence):
                self._sequences[operation.sequence].limit = operation.limit
            elif isinstance(operation, SwapOut | SwapIn):
                self._moving.append(operation.transfers)
                num_moved += len(operation.transfers)
            elif isinstance(operation, CloseSequences):
                for sequence in operation.sequences:
                    self._sequences.pop(sequence, None)
        return num_moved

    def _named(self, batch: Batch) -> list[tuple[SequenceId, int, int]]:
        """(sequence, epoch, steps) of the message's sequences, in the order of its result."""
        named = []
        if batch.forward is not None:
            for sequence in batch.forward.sequences.tolist():
                if sequence >= 0:
                    epoch = self._sequences[SequenceId(sequence)].epoch
                    named.append((SequenceId(sequence), epoch, batch.num_steps))
        if batch.advance is not None:
            rows = batch.advance
            named += zip(
                map(SequenceId, rows.sequences.tolist()),
                rows.epochs.tolist(),
                rows.max_steps.tolist(),
                strict=True,
            )
        return named

    def _advance(
        self, sequence: SequenceId, epoch: int, max_steps: int
    ) -> tuple[list[int], SequenceEnd]:
        """The tokens of one sequence in this message, and how it ended. A sequence that has already
        ended, or has another epoch, is skipped."""
        state = self._sequences.get(sequence)
        if state is None or state.epoch != epoch or state.end is not SequenceEnd.RUNNING:
            return [], SequenceEnd.RUNNING
        num_free = 1 if state.is_new else 0
        room = state.limit - state.cursor + num_free
        count = min(max_steps, state.num_left)
        if count > room:
            count, state.end = room, SequenceEnd.NO_ROOM
        tokens = self._tokens(state, count)
        state.cursor += count - num_free
        state.is_new = False
        state.position += count
        state.num_left -= count
        if state.num_left <= 0:
            state.end = SequenceEnd.MAX_TOKENS
        return tokens, state.end

    def _tokens(self, state: _Sequence, count: int) -> list[int]:
        base = state.seed * _SEED_STRIDE
        positions = range(state.position, state.position + count)
        vocab_size = self._info.vocab_size
        return [(base + position * _POSITION_STRIDE) % vocab_size for position in positions]

    def _elapsed_s(
        self,
        named: Sequence[tuple[SequenceId, int, int]],
        counts: Sequence[int],
        num_prompt: int,
    ) -> float:
        cost = self._cost
        elapsed_s = cost.message_s + cost.prompt_token_s * num_prompt
        if counts:
            elapsed_s += cost.step_s * max(counts) + cost.row_s * sum(counts)
        if cost.context_token_s:
            for (sequence, _, _), count in zip(named, counts, strict=True):
                state = self._sequences.get(sequence)
                if state is not None:
                    elapsed_s += cost.context_token_s * state.cursor * count
        return elapsed_s

    def _samples(self, rows: SampleRows) -> I32:
        seeds = np.array([sampler.seed or 0 for sampler in rows.samplers], np.int64)
        mixed = seeds[rows.sampler_index] * _SEED_STRIDE + rows.positions * _POSITION_STRIDE
        return (mixed % self._info.vocab_size).astype(np.int32)


def _report(
    named: Sequence[tuple[SequenceId, int, int]],
    runs: Sequence[tuple[list[int], SequenceEnd]],
) -> SequenceTokens:
    counts = [len(tokens) for tokens, _ in runs]
    return SequenceTokens(
        sequences=np.array([sequence for sequence, _, _ in named], np.int32),
        epochs=np.array([epoch for _, epoch, _ in named], np.int32),
        token_starts=np.cumsum([0, *counts], dtype=np.int32),
        tokens=np.array([token for tokens, _ in runs for token in tokens], np.int32),
        ends=np.array([end for _, end in runs], np.int32),
        matched=np.full(len(runs), -1, np.int32),
    )


def _add_dists(result: BatchResult, rows: DistRows) -> None:
    """A uniform distribution over the first tokens, as many as were asked for."""
    sizes = rows.top_k.tolist()
    result.dist_starts = np.cumsum([0, *sizes], dtype=np.int32)
    result.dist_ids = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    probs: list[F32] = [np.full(size, 1.0 / size, np.float32) for size in sizes]
    result.dist_probs = np.concatenate(probs)


def _unscored(batch: Batch) -> list[RowFailure]:
    """Failures for rows that ask for log probabilities or attention, which do not exist here."""
    forward = batch.forward
    if forward is None:
        return []
    asks = set(forward.attention_rows.tolist())
    if len(forward.score_targets):
        starts = forward.row_starts.tolist()
        asks |= {
            row
            for row in range(len(starts) - 1)
            if (forward.score_targets[starts[row] : starts[row + 1]] >= 0).any()
        }
    return [RowFailure(stage="forward", index=row, error=_no_scores()) for row in sorted(asks)]


def _no_scores() -> ErrorRecord:
    return InvalidArgument(
        "a simulated engine computes no log probabilities and no attention scores: leave them out"
    ).record()
