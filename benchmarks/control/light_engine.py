"""An engine that computes nothing: it says how far each sequence went, and how long that took.

What control costs does not depend on which tokens come, so none are computed: every sampled token
is the same, and a sequence ends where its stop condition or its room says. Time is modelled: one
step of any number of rows takes ``step_s``, a prompt token ``token_s`` more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.batch import (
    Batch,
    BatchResult,
    CloseSequences,
    ExtendSequence,
    OpenSequence,
    SequenceEnd,
    SequenceTokens,
    SwapIn,
    SwapOut,
    TransfersEnded,
)
from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.core.ids import SequenceId
from quire.core.traits import MODEL_TRAITS, Trait

_TOKEN = 7


@dataclass(slots=True)
class _Sequence:
    epoch: int
    cursor: int
    limit: int
    num_left: int
    has_ended: bool = False


class LightEngine:
    """``execute`` answers messages in order, as an ``EngineCore`` does."""

    def __init__(
        self,
        *,
        num_blocks: int,
        num_host_blocks: int = 0,
        max_sequences: int = 64,
        max_batch_tokens: int = 512,
        page_size: int = 16,
        step_s: float = 0.01,
        token_s: float = 0.0001,
    ) -> None:
        group = LayerGroup(
            num_blocks=num_blocks, num_host_blocks=num_host_blocks, bytes_per_block=1024
        )
        pool = PoolSpec(
            page_size=page_size,
            groups=(group,),
            num_embeds=256,
            num_token_slots=256,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
        )
        self.info = EngineInfo(
            model="light",
            family="light",
            digest="light-1",
            vocab_size=1024,
            hidden_size=1,
            num_layers=1,
            max_model_len=1 << 20,
            dtype="float32",
            device="cpu",
            backend="light",
            num_parameters=0,
            pool=pool,
            traits=sorted(t.value for t in set(MODEL_TRAITS) - {Trait.INPUT_IMAGE, Trait.ADAPTER}),
        )
        self._step_s = step_s
        self._token_s = token_s
        self._sequences: dict[int, _Sequence] = {}
        self._transfers: list[int] = []
        self.num_tokens = 0

    def transfer(self) -> TransfersEnded | None:
        """All transfers that messages have begun."""
        if not self._transfers:
            return None
        ended, self._transfers = self._transfers, []
        return TransfersEnded(transfers=np.array(ended, np.int32))

    def execute(self, batch: Batch) -> BatchResult:
        for operation in batch.operations:
            if isinstance(operation, OpenSequence):
                left = operation.stop.max_tokens - operation.num_generated
                self._sequences[operation.sequence] = _Sequence(
                    operation.epoch, operation.cursor, operation.limit, left
                )
            elif isinstance(operation, ExtendSequence):
                self._sequences[operation.sequence].limit = operation.limit
            elif isinstance(operation, CloseSequences):
                for sequence in operation.sequences:
                    self._sequences.pop(sequence, None)
            elif isinstance(operation, SwapIn | SwapOut):
                self._transfers += operation.transfers.tolist()
        named: list[tuple[int, int]] = []
        num_prompt = 0
        if batch.forward is not None:
            num_prompt = len(batch.forward.tokens)
            named += [(s, batch.num_steps) for s in batch.forward.sequences.tolist() if s >= 0]
        if batch.advance is not None:
            advance = batch.advance
            named += zip(advance.sequences.tolist(), advance.max_steps.tolist(), strict=True)
        rows = [self._advance(number, steps) for number, steps in named]
        counts = [count for count, _, _ in rows]
        self.num_tokens += sum(counts)
        sequences = SequenceTokens(
            sequences=np.array([number for number, _ in named], np.int32),
            epochs=np.array([epoch for _, epoch, _ in rows], np.int32),
            token_starts=np.cumsum([0, *counts], dtype=np.int32),
            tokens=np.full(sum(counts), _TOKEN, np.int32),
            ends=np.array([end for _, _, end in rows], np.int32),
            matched=np.full(len(rows), -1, np.int32),
        )
        elapsed_s = self._step_s * max([1, *counts]) + self._token_s * num_prompt
        return BatchResult(
            step=batch.step,
            elapsed_s=elapsed_s,
            num_tokens=num_prompt + sum(counts),
            sequences=sequences if named else None,
        )

    def _advance(self, number: int, max_steps: int) -> tuple[int, int, SequenceEnd]:
        """Tokens, epoch and end of one sequence. The token behind the last one has no K and V."""
        sequence = self._sequences.get(SequenceId(number))
        if sequence is None or sequence.has_ended:
            return 0, -1 if sequence is None else sequence.epoch, SequenceEnd.RUNNING
        count = min(max_steps, sequence.num_left)
        end = SequenceEnd.RUNNING
        room = sequence.limit - sequence.cursor
        if count > room:
            count, end = max(room, 1), SequenceEnd.NO_ROOM
        sequence.cursor += count
        sequence.num_left -= count
        if sequence.num_left <= 0:
            end = SequenceEnd.MAX_TOKENS
        sequence.has_ended = end is not SequenceEnd.RUNNING
        return count, sequence.epoch, end


__all__ = ["LightEngine"]
