"""What messages of real engines consisted of, and how long they took, from events and actions.

Owns the features of a message, which are those that have a price in ``StepCost``. Must not know
where events come from, nor how the samples are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from quire.core.actions import Action, Dispatch
from quire.core.batch import Batch, OpenSequence, SwapIn, SwapOut
from quire.core.batch_result import BatchResult
from quire.core.engine_info import EngineInfo, PoolSpec
from quire.core.errors import InvalidArgument
from quire.core.events import BatchCompleted, EngineDown, EngineUp, Event
from quire.core.ids import EngineId, SequenceId
from quire.simulation.overhead import num_rows


@dataclass(frozen=True, slots=True)
class MessageSample:
    """One message. ``num_steps``: of its longest row; ``num_rows``: of all its steps;
    ``num_context_tokens``: tokens that these rows attended to; ``num_moved_blocks``: blocks whose
    move between tiers began; ``num_commands``: commands that it carried. ``gap_s``: the time
    besides the engine's own, from sending to reading the result; None if it waited behind another
    message. ``behind_s``: of one that did, the same from reading the result before it; negative if
    that was read late."""

    elapsed_s: float
    num_steps: int
    num_rows: int
    num_context_tokens: int
    num_prompt_tokens: int
    num_moved_blocks: int
    num_commands: int
    gap_s: float | None
    behind_s: float | None


@dataclass(slots=True)
class _Sent:
    batch: Batch
    sent_s: float
    was_idle: bool


@dataclass(slots=True)
class _Engine:
    """One engine. ``cursors``: the cursor of each open sequence, and whether it has sampled
    anything yet. ``ended_s``: when the last result was read."""

    sent: deque[_Sent] = field(default_factory=deque)
    cursors: dict[SequenceId, tuple[int, bool]] = field(default_factory=dict)
    ended_s: float = 0.0


def _kind(info: EngineInfo) -> tuple[str, str, PoolSpec]:
    """The figures of an engine that decide how long its messages take."""
    return info.content, info.layout, info.pool


class MessageTimes:
    """Collects samples. Pass every event with its actions to ``observe``; ``samples`` are the
    messages that have ended, of all engines, which are alike. ``info``: of the first of them."""

    def __init__(self) -> None:
        self.samples: list[MessageSample] = []
        self.info: EngineInfo | None = None
        self._engines: dict[EngineId, _Engine] = {}

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """Take one event with its actions.

        Raises:
            InvalidArgument: engines of different models.
        """
        match event:
            case EngineUp(info=EngineInfo() as info, engine=engine):
                self._up(engine, info)
            case EngineDown(engine=engine):
                self._engines.pop(engine, None)
            case BatchCompleted(engine=engine, result=result, time_s=time_s):
                self._ended(self._engines[engine], result, time_s)
        for action in actions:
            if isinstance(action, Dispatch) and isinstance(action.batch, Batch):
                sent = self._engines[action.engine].sent
                sent.append(_Sent(action.batch, event.time_s, not sent))

    def _up(self, engine: EngineId, info: EngineInfo) -> None:
        if self.info is None:
            self.info = info
        elif _kind(self.info) != _kind(info):
            raise InvalidArgument(
                f"engines of {self.info.model} and of {info.model} were running, with other "
                "weights or pools: a profile is of one kind of engine, so start one model alone"
            )
        self._engines[engine] = _Engine()

    def _ended(self, engine: _Engine, result: BatchResult, now_s: float) -> None:
        sent = engine.sent.popleft()
        num_moved = self._operate(engine, sent.batch)
        counts, num_context = self._advance(engine, result)
        forward = sent.batch.forward
        gap_s = max(0.0, now_s - sent.sent_s - result.elapsed_s)
        behind_s, engine.ended_s = now_s - engine.ended_s - result.elapsed_s, now_s
        self.samples.append(
            MessageSample(
                elapsed_s=result.elapsed_s,
                num_steps=max(counts, default=0),
                num_rows=sum(counts),
                num_context_tokens=num_context,
                num_prompt_tokens=0 if forward is None else len(forward.tokens),
                num_moved_blocks=num_moved,
                num_commands=num_rows(sent.batch),
                gap_s=gap_s if sent.was_idle else None,
                behind_s=None if sent.was_idle else behind_s,
            )
        )

    def _operate(self, engine: _Engine, batch: Batch) -> int:
        num_moved = 0
        for operation in batch.operations:
            if isinstance(operation, OpenSequence):
                engine.cursors[operation.sequence] = operation.cursor, True
            elif isinstance(operation, SwapOut | SwapIn):
                num_moved += len(operation.transfers)
        return num_moved

    def _advance(self, engine: _Engine, result: BatchResult) -> tuple[list[int], int]:
        """The tokens of each sequence in the message, and the number of tokens that their rows
        attended to."""
        told = result.sequences
        if told is None:
            return [], 0
        starts = told.token_starts.tolist()
        counts = [stop - start for start, stop in pairwise(starts)]
        num_context = 0
        for number, count in zip(told.sequences.tolist(), counts, strict=True):
            sequence = SequenceId(number)
            cursor, is_new = engine.cursors.get(sequence, (0, False))
            if count:  # the token that a prompt gives takes no slot until it is run
                cursor += count - is_new
                engine.cursors[sequence] = cursor, False
            num_context += cursor * count
        return counts, num_context
