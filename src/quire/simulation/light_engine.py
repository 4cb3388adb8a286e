"""An engine that computes nothing: it reports the progress of each row and a modelled duration.

Owns the modelled time of a message and the state that results need: where sequences stand and when
they end. Token ids depend on seed and position alone, so that a reopened sequence continues with
the same tokens; they carry no meaning. Grammars, stop strings and stop tokens are ignored: only
``max_tokens`` bounds an answer.
"""

from __future__ import annotations

from collections.abc import Callable
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
_RUNNING, _NO_ROOM = int(SequenceEnd.RUNNING), int(SequenceEnd.NO_ROOM)
_MAX_TOKENS = int(SequenceEnd.MAX_TOKENS)
"""As the numbers that a result has: an array of members of an enum takes ten times as long."""


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
    it is run, one step later. ``end``: a ``SequenceEnd``, as a number."""

    epoch: int
    seed: int
    cursor: int
    limit: int
    position: int
    num_left: int
    is_new: bool = True
    end: int = _RUNNING

    def advance(self, max_steps: int) -> int:
        """Go on by at most so many tokens; how many it is."""
        num_free = 1 if self.is_new else 0
        room = self.limit - self.cursor + num_free
        count = min(max_steps, self.num_left)
        if count > room:
            count, self.end = room, _NO_ROOM
        self.cursor += count - num_free
        self.is_new = False
        self.position += count
        self.num_left -= count
        if self.num_left <= 0:
            self.end = _MAX_TOKENS
        return count


class _Runs:
    """What the sequences of one message came to, in order. ``num_context``: tokens that their rows
    attended to, if anybody counts them."""

    __slots__ = ("_starts", "ends", "epochs", "most_steps", "num_context", "sequences", "tokens")

    def __init__(self, sequences: list[int], epochs: list[int]) -> None:
        self.sequences = sequences
        self.epochs = epochs
        self.tokens: list[int] = []
        self.ends: list[int] = []
        self.most_steps = 0
        self.num_context = 0
        self._starts = [0]

    def add(self, tokens: list[int], end: int) -> None:
        self.tokens += tokens
        self._starts.append(len(self.tokens))
        self.ends.append(end)
        if len(tokens) > self.most_steps:
            self.most_steps = len(tokens)

    def add_nothing(self) -> None:
        self.add([], _RUNNING)

    def report(self) -> SequenceTokens:
        return SequenceTokens(
            sequences=np.array(self.sequences, np.int32),
            epochs=np.array(self.epochs, np.int32),
            token_starts=np.array(self._starts, np.int32),
            tokens=np.array(self.tokens, np.int32),
            ends=np.array(self.ends, np.int32),
            matched=np.full(len(self.ends), -1, np.int32),
        )


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
            content="light-1",
            layout=f"light-1 in pages of {pool.page_size}",
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
        transfers = np.concatenate(moving)
        elapsed_s = self._cost.moved_block_s * len(transfers)
        return TransfersEnded(transfers=transfers, elapsed_s=elapsed_s)

    def wake_by(self, ring: Callable[[], None]) -> None:
        """``transfer`` has nothing to tell without a message."""

    def execute(self, batch: Batch) -> BatchResult:
        """Run one message.

        Raises:
            EngineFault: it was closed before.
        """
        if self._closed:
            raise EngineFault("the engine is closed")
        num_moved = self._operate(batch)
        runs = self._advance_all(*self._named(batch))
        num_tokens = len(runs.tokens)
        self.num_tokens += num_tokens
        num_prompt = 0 if batch.forward is None else len(batch.forward.tokens)
        result = BatchResult(
            step=batch.step,
            elapsed_s=self._elapsed_s(runs, num_prompt) + self._cost.moved_block_s * num_moved,
            num_tokens=num_prompt + num_tokens,
            sequences=runs.report() if runs.sequences else None,
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

    def _named(self, batch: Batch) -> tuple[list[int], list[int], list[int]]:
        """The message's sequences in the order of its result, their epochs and their steps."""
        named: list[int] = []
        epochs: list[int] = []
        steps: list[int] = []
        if batch.forward is not None:
            named = [one for one in batch.forward.sequences.tolist() if one >= 0]
            epochs = [self._sequences[SequenceId(one)].epoch for one in named]
            steps = [batch.num_steps] * len(named)
        if batch.advance is not None:
            named += batch.advance.sequences.tolist()
            epochs += batch.advance.epochs.tolist()
            steps += batch.advance.max_steps.tolist()
        return named, epochs, steps

    def _advance_all(self, named: list[int], epochs: list[int], steps: list[int]) -> _Runs:
        """A sequence that has already ended, or has another epoch, is skipped."""
        runs = _Runs(named, epochs)
        attended = self._cost.context_token_s > 0
        known = self._sequences
        for sequence, epoch, max_steps in zip(named, epochs, steps, strict=True):
            state = known.get(SequenceId(sequence))
            if state is None or state.epoch != epoch or state.end != _RUNNING:
                runs.add_nothing()
                continue
            first = state.position
            count = state.advance(max_steps)
            runs.add(self._tokens(state.seed, first, count), state.end)
            if attended:
                runs.num_context += state.cursor * count
        return runs

    def _tokens(self, seed: int, first: int, count: int) -> list[int]:
        token = seed * _SEED_STRIDE + first * _POSITION_STRIDE
        vocab_size = self._info.vocab_size
        if count == 1:  # as in most messages
            return [token % vocab_size]
        ids = range(token, token + count * _POSITION_STRIDE, _POSITION_STRIDE)
        return [one % vocab_size for one in ids]

    def _elapsed_s(self, runs: _Runs, num_prompt: int) -> float:
        cost = self._cost
        elapsed_s = cost.message_s + cost.prompt_token_s * num_prompt
        if runs.sequences:
            elapsed_s += cost.step_s * runs.most_steps + cost.row_s * len(runs.tokens)
        return elapsed_s + cost.context_token_s * runs.num_context

    def _samples(self, rows: SampleRows) -> I32:
        seeds = np.array([sampler.seed or 0 for sampler in rows.samplers], np.int64)
        mixed = seeds[rows.sampler_index] * _SEED_STRIDE + rows.positions * _POSITION_STRIDE
        return (mixed % self._info.vocab_size).astype(np.int32)


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
