"""Latencies of requests: time to first token, between tokens, to the end, per engine.

Observes events and actions on the control thread, so every form of program is measured in the same
way: a *request* is one ``Decode`` command, from its arrival to its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.core.actions import Action, Deliver, Fail, QueuePlaced, Terminate
from quire.core.calls import CloseQueue, Issue
from quire.core.commands import Decode
from quire.core.decoding import DecodeChunk
from quire.core.events import Called, EngineDown, EngineGivenUp, EngineUp, Event, ProgramEnded
from quire.core.ids import CommandId, EngineId, ProgramId, QueueId

FIRST_TOKEN_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
INTER_TOKEN_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip
REQUEST_BOUNDS_S = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """``counts[i]`` is the number of observations in ``(bounds_s[i - 1], bounds_s[i]]``; the last
    entry of ``counts`` (one more than bounds) is the number above all bounds. Not cumulative."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def num_observations(self) -> int:
        return sum(self.counts)


class Histogram:
    """Counts of durations in fixed buckets."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, duration_s: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds_s, duration_s)] += times
        self._sum_s += duration_s * times

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds_s, tuple(self._counts), self._sum_s)


@dataclass(frozen=True, slots=True)
class EngineLatencies:
    """``inter_token`` counts each token after the first, with its share of its chunk's time. The
    tokens of a decode that does not stream are one chunk."""

    time_to_first_token: HistogramSnapshot
    inter_token: HistogramSnapshot
    request: HistogramSnapshot
    num_finished: int
    num_failed: int
    num_cancelled: int


class _EngineLatency:
    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS_S)
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS_S)
        self.request = Histogram(REQUEST_BOUNDS_S)
        self.num_finished = 0
        self.num_failed = 0
        self.num_cancelled = 0

    def snapshot(self) -> EngineLatencies:
        return EngineLatencies(
            self.first_token.snapshot(),
            self.inter_token.snapshot(),
            self.request.snapshot(),
            self.num_finished,
            self.num_failed,
            self.num_cancelled,
        )


_PLACING = (Called, EngineUp, EngineDown, EngineGivenUp)
"""Events that place queues on engines."""


@dataclass(slots=True)
class _Request:
    engine: _EngineLatency
    arrived_s: float
    last_token_s: float | None = None


class LatencyObserver:
    """An ``Observer`` of the control thread; call ``snapshot`` there too."""

    def __init__(self) -> None:
        self._engines: dict[EngineId, _EngineLatency] = {}
        self._queues: dict[ProgramId, dict[QueueId, EngineId]] = {}
        self._requests: dict[tuple[ProgramId, CommandId], _Request] = {}

    def snapshot(self) -> Mapping[EngineId, EngineLatencies]:
        return {engine: latency.snapshot() for engine, latency in self._engines.items()}

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, _PLACING):
            self._note_places(actions)
        if isinstance(event, Called):
            self._called(event)
        elif isinstance(event, ProgramEnded):
            self._queues.pop(event.program, None)
        for action in actions:
            if isinstance(action, Deliver):
                if self._requests:
                    self._delivered(action, event.time_s)
            elif isinstance(action, Fail):
                self._failed(action)
            elif isinstance(action, Terminate):
                self._queues.pop(action.program, None)

    def observe_failure(self, event: Event, error: Exception) -> None:
        """Do nothing: nothing was delivered."""

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _note_places(self, actions: Sequence[Action]) -> None:
        """Note the engine of each queue. A request counts for the engine on which it began, even if
        its queue moves."""
        for action in actions:
            if isinstance(action, QueuePlaced):
                self._queues.setdefault(action.program, {})[action.queue] = action.engine

    def _called(self, event: Called) -> None:
        call = event.call
        if isinstance(call, Issue):
            for command in call.commands:
                if isinstance(command, Decode):
                    self._began(event, call.queue, command)
        elif isinstance(call, CloseQueue):
            self._queues.get(event.program, {}).pop(call.queue, None)

    def _began(self, event: Called, queue: QueueId, command: Decode) -> None:
        engine = self._queues.get(event.program, {}).get(queue)
        if engine is None:
            return  # control refuses commands on a queue that does not exist
        latency = self._engines.setdefault(engine, _EngineLatency())
        self._requests[event.program, command.id] = _Request(latency, event.time_s)

    def _delivered(self, action: Deliver, now_s: float) -> None:
        request = self._requests.get((action.program, action.command))
        if request is None:
            return
        if isinstance(action.reply, DecodeChunk) and action.reply.token_ids:
            num_tokens = len(action.reply.token_ids)
            first_after_s = action.reply.first_token_after_s
            if first_after_s is not None:  # the command delivers all tokens at its end
                self._tokens(request, 1, request.arrived_s + first_after_s)
                num_tokens -= 1
            if num_tokens:
                self._tokens(request, num_tokens, now_s)
        if action.last:
            del self._requests[action.program, action.command]
            request.engine.request.observe(now_s - request.arrived_s)
            request.engine.num_finished += 1

    def _tokens(self, request: _Request, num_tokens: int, now_s: float) -> None:
        latency = request.engine
        if request.last_token_s is None:
            latency.first_token.observe(now_s - request.arrived_s)
            num_tokens -= 1  # tokens that came with the first one cost no further wait
            if num_tokens:
                latency.inter_token.observe(0.0, num_tokens)
        else:
            latency.inter_token.observe((now_s - request.last_token_s) / num_tokens, num_tokens)
        request.last_token_s = now_s

    def _failed(self, action: Fail) -> None:
        request = self._requests.pop((action.program, action.command), None)
        if request is None:
            return
        if action.error.code == "program_cancelled":
            request.engine.num_cancelled += 1
        else:
            request.engine.num_failed += 1
