"""An engine that computes nothing: it reports the progress of each row and a modelled duration.

Owns the modelled time of a message and the state that results need: the cursors of sequences and
their ends. Token ids depend on seed and position alone, so that a reopened sequence continues with
the same tokens; they carry no meaning. Grammars, stop strings and stop tokens are ignored: only
``max_tokens`` bounds an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire.core.batch import (
    I32,
    AdvanceRows,
    Batch,
    CloseSequences,
    ExtendSequence,
    OpenSequence,
    ReadDisk,
    SampleRows,
    SwapIn,
    SwapOut,
    WriteDisk,
)
from quire.core.batch_result import (
    BatchResult,
    SequenceEnd,
    TransfersEnded,
)
from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.core.errors import EngineFault
from quire.core.traits import Trait
from quire.simulation.light_rows import (
    RUNNING,
    AdvancedSequences,
    NamedSequences,
    ReportMaker,
    Runs,
    add_dists,
    unscored,
)
from quire.simulation.step_cost import StepCost

_TRAITS = (Trait.ALLOCATE, Trait.FORWARD, Trait.INPUT_TEXT, Trait.SAMPLE, Trait.DECODE)
_SEED_STRIDE, _STRIDE = 7919, 104729
"""Primes, so that neighbouring seeds and positions give different tokens."""
_NO_ROOM, _MAX_TOKENS = int(SequenceEnd.NO_ROOM), int(SequenceEnd.MAX_TOKENS)
"""The ends as the numbers in a result, like ``RUNNING``."""


def light_pool(
    *,
    num_blocks: int,
    num_host_blocks: int = 0,
    num_disk_blocks: int = 0,
    page_size: int = 16,
    max_sequences: int = 64,
    max_batch_tokens: int = 512,
    bytes_per_block: int = 1 << 16,
) -> PoolSpec:
    """A pool of one full-attention group."""
    group = LayerGroup(
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        num_disk_blocks=num_disk_blocks,
        bytes_per_block=bytes_per_block,
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
    """One sequence. ``cursor`` and ``limit`` in slots of its table. ``next_token``: before it is
    cut to the vocabulary; each position adds ``_STRIDE``. ``is_new``: nothing was sampled since it
    was opened; the token that the prompt's last token gives takes no slot until it is run, one step
    later. ``end``: a ``SequenceEnd``, as a number."""

    epoch: int
    next_token: int
    cursor: int
    limit: int
    num_left: int
    is_new: bool = True
    end: int = RUNNING

    def advance(self, max_steps: int) -> int:
        """Go on by at most ``max_steps`` tokens; return by how many."""
        if max_steps == 1 and self.num_left > 1 and self.cursor < self.limit and not self.is_new:
            self.cursor += 1  # the usual case
            self.next_token += _STRIDE
            self.num_left -= 1
            return 1
        num_free = 1 if self.is_new else 0
        room = self.limit - self.cursor + num_free
        count = min(max_steps, self.num_left)
        if count > room:
            count, self.end = room, _NO_ROOM
        self.cursor += count - num_free
        self.is_new = False
        self.next_token += count * _STRIDE
        self.num_left -= count
        if self.num_left <= 0:
            self.end = _MAX_TOKENS
        return count


class LightEngine:
    """An ``EngineCore`` that trusts its controller: messages that break the contract may go
    unnoticed. ``num_tokens``: tokens sampled by sequences since it was created. With a
    ``data_address`` it exchanges K and V with others, at the times that ``links`` computes from the
    times of its messages."""

    def __init__(
        self,
        pool: PoolSpec,
        cost: StepCost | None = None,
        *,
        model: str = "light",
        vocab_size: int = 32_000,
        max_model_len: int = 1 << 20,
        num_layers: int = 1,
        data_address: str = "",
    ) -> None:
        self._info = EngineInfo(
            model=model,
            family="light",
            content="light-1",
            layout=f"light-1 in pages of {pool.page_size}",
            vocab_size=vocab_size,
            hidden_size=1,
            num_layers=num_layers,
            max_model_len=max_model_len,
            dtype="float32",
            device="cpu",
            backend="light",
            num_parameters=0,
            pool=pool,
            traits=sorted(trait.value for trait in _TRAITS),
            data_address=data_address,
        )
        self._cost = cost or StepCost()
        self._sequences: dict[int, _Sequence] = {}
        self._advanced: AdvancedSequences | None = None
        self._reports = ReportMaker()
        self._moving: deque[tuple[I32, float]] = deque()
        self.num_tokens = 0
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    def close(self) -> None:
        self._closed = True

    def transfer(self) -> TransfersEnded | None:
        """End the transfers of one operation: their time was counted in the message that began
        them."""
        if not self._moving:
            return None
        transfers, block_s = self._moving.popleft()
        return TransfersEnded(transfers=transfers, elapsed_s=block_s * len(transfers))

    def wake_by(self, ring: Callable[[], None]) -> None:
        """Do nothing: ``transfer`` has nothing to report without a message."""

    def execute(self, batch: Batch) -> BatchResult:
        """Run one message.

        Raises:
            EngineFault: it was closed before.
        """
        if self._closed:
            raise EngineFault("the engine is closed")
        moved_s = self._operate(batch)
        named = self._named(batch)
        runs = self._advance_all(named)
        num_tokens = len(runs.tokens)
        self.num_tokens += num_tokens
        num_prompt = 0 if batch.forward is None else len(batch.forward.tokens)
        result = BatchResult(
            serial=batch.serial,
            elapsed_s=self._elapsed_s(runs, num_prompt) + self._attended_s(batch) + moved_s,
            num_tokens=num_prompt + num_tokens,
            sequences=self._reports.make(batch, named, runs) if named.sequences else None,
            failures=unscored(batch),
        )
        if batch.dists is not None:
            add_dists(result, batch.dists)
        if batch.samples is not None:
            result.samples = self._samples(batch.samples)
        return result

    def _operate(self, batch: Batch) -> float:
        """Carry out the operations; return the time of moving blocks."""
        moved_s = 0.0
        for operation in batch.operations:
            if isinstance(operation, OpenSequence):
                self._sequences[operation.sequence] = _Sequence(
                    epoch=operation.epoch,
                    next_token=(operation.sampler.seed or 0) * _SEED_STRIDE
                    + operation.position * _STRIDE,
                    cursor=operation.cursor,
                    limit=operation.limit,
                    num_left=operation.stop.max_tokens - operation.num_generated,
                )
            elif isinstance(operation, ExtendSequence):
                self._sequences[operation.sequence].limit = operation.limit
            elif isinstance(operation, SwapOut | SwapIn):
                moved_s += self._move(operation.transfers, self._cost.moved_block_s)
            elif isinstance(operation, WriteDisk | ReadDisk):
                moved_s += self._move(operation.transfers, self._cost.disk_block_s)
            elif isinstance(operation, CloseSequences):
                for sequence in operation.sequences:
                    self._sequences.pop(sequence, None)
        return moved_s

    def _move(self, transfers: I32, block_s: float) -> float:
        self._moving.append((transfers, block_s))
        return block_s * len(transfers)

    def _named(self, batch: Batch) -> NamedSequences:
        advance, forward = batch.advance, batch.forward
        advanced = None if advance is None else self._read(advance)
        if forward is None:
            return NamedSequences([], [], []) if advanced is None else advanced
        sequences = [one for one in forward.sequences.tolist() if one >= 0]
        epochs = [self._sequences[one].epoch for one in sequences]
        steps = [batch.num_steps] * len(sequences)
        if advanced is None:
            return NamedSequences(sequences, epochs, steps)
        return NamedSequences(
            sequences + advanced.sequences, epochs + advanced.epochs, steps + advanced.steps
        )

    def _read(self, rows: AdvanceRows) -> NamedSequences:
        advanced = self._advanced
        if advanced is None or not advanced.is_of(rows):
            advanced = self._advanced = AdvancedSequences(rows)
        return advanced.named

    def _advance_all(self, named: NamedSequences) -> Runs:
        """Advance the sequences. One that has already ended, or has another epoch, is skipped."""
        runs = Runs()
        tokens, starts, ends = runs.tokens, runs.starts, runs.ends
        known, vocab_size = self._sequences, self._info.vocab_size
        epochs, steps = named.epochs, named.steps
        for index, sequence in enumerate(named.sequences):
            max_steps = steps[index]
            state = known.get(sequence)
            if state is None or state.epoch != epochs[index] or state.end != RUNNING:
                starts.append(len(tokens))
                ends.append(RUNNING)
                runs.is_even = False
                continue
            token = state.next_token
            count = state.advance(max_steps)
            if count == 1:  # as in most messages
                tokens.append(token % vocab_size)
            else:
                tokens += [one % vocab_size for one in range(token, state.next_token, _STRIDE)]
                runs.is_even = False
            starts.append(len(tokens))
            ends.append(state.end)
            if state.end != RUNNING:
                runs.is_even = False
            runs.num_context += state.cursor * count
            runs.num_first += count > 0
            if count > runs.most_steps:
                runs.most_steps = count
        return runs

    def _elapsed_s(self, runs: Runs, num_prompt: int) -> float:
        cost = self._cost
        num_rows = len(runs.tokens)
        elapsed_s = cost.message_s
        elapsed_s += cost.passes_s(num_prompt, runs.most_steps, runs.num_first, num_rows)
        return elapsed_s + cost.context_token_s * runs.num_context

    def _attended_s(self, batch: Batch) -> float:
        """The time for what the tokens of prompts attend to: all positions before their own, and
        their own."""
        cost_s, forward = self._cost.prompt_context_s, batch.forward
        if not cost_s or forward is None:
            return 0.0
        return cost_s * (int(forward.positions[0].sum()) + len(forward.tokens))

    def _samples(self, rows: SampleRows) -> I32:
        seeds = np.array([sampler.seed or 0 for sampler in rows.samplers], np.int64)
        mixed = seeds[rows.sampler_index] * _SEED_STRIDE + rows.positions * _STRIDE
        return (mixed % self._info.vocab_size).astype(np.int32)
