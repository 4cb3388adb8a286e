"""Keeps a constant number of calls alive: a closed loop over ``Controller`` in virtual time.

Each call is a program's whole life (allocate pages, decode, free pages). When a program ends, a new
one starts, so that the number of live programs is constant. Only ``Controller.handle`` is timed;
the engine's and this loop's time is not counted.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass

from quire.control import Controller
from quire.core.actions import Deliver, Dispatch, Fail, SetTimer
from quire.core.batch import Batch
from quire.core.calls import CreateQueue, Issue
from quire.core.commands import AllocPages, Command, Decode
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.events import (
    BatchCompleted,
    Called,
    EngineUp,
    Event,
    ProgramEnded,
    ProgramStarted,
    Tick,
    TransfersCompleted,
)
from quire.core.ids import (
    CommandId,
    EngineId,
    ModelId,
    PageId,
    ProgramId,
    QueueId,
    TenantId,
)
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import TraceListener
from quire.simulation import LightEngine

_ENGINE, _MODEL = EngineId("light"), ModelId("light")
_SAMPLER = SamplerSpec(seed=1)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the calls: lengths are drawn uniformly from these ranges. ``prompt_tokens``:
    prompts differ from the first page on, so that the prefix index finds nothing."""

    prompt_tokens: tuple[int, int] = (32, 64)
    output_tokens: tuple[int, int] = (32, 128)
    num_tenants: int = 4


@dataclass(slots=True)
class Measured:
    """Totals of the messages since ``ClosedLoop.begin``. ``control_s``: in ``handle``;
    ``engine_s``: the engine's modelled time."""

    num_messages: int = 0
    num_tokens: int = 0
    num_ended: int = 0
    num_failed: int = 0
    control_s: float = 0.0
    engine_s: float = 0.0
    slowest_s: float = 0.0

    @property
    def ms_per_message(self) -> float:
        return 1e3 * self.control_s / max(1, self.num_messages)


class ClosedLoop:
    """Keeps ``num_calls`` alive at any time."""

    def __init__(
        self,
        engine: LightEngine,
        config: SchedulerConfig,
        num_calls: int,
        shape: Shape | None = None,
        *,
        seed: int = 0,
        listener: TraceListener | None = None,
    ) -> None:
        self._engine = engine
        self._shape = shape or Shape()
        self._random = random.Random(seed)
        self._controller = Controller(config, listener=listener)
        self._in_flight: deque[Batch] = deque()
        self._timer_s: float | None = None
        self._now_s = 0.0
        self._num_programs = 0
        self._ended: list[ProgramId] = []
        self._handled_s = 0.0
        self.measured = Measured()
        self._post(EngineUp(time_s=0.0, engine=_ENGINE, model=_MODEL, info=engine.info))
        for _ in range(num_calls):
            self._start_call(more=True)
        self._post(Tick(time_s=self._now_s))

    def run(self, num_messages: int) -> Measured:
        """Run ``num_messages`` and return what they took."""
        self.measured = Measured()
        generated = self._engine.num_tokens
        while self.measured.num_messages < num_messages:
            self._step()
        self.measured.num_tokens = self._engine.num_tokens - generated
        return self.measured

    def _step(self) -> None:
        if not self._in_flight:
            assert self._timer_s is not None, "control waits for nothing: it is wedged"
            self._now_s, self._timer_s = max(self._now_s, self._timer_s), None
            self._post(Tick(time_s=self._now_s))
            return
        result = self._engine.execute(self._in_flight.popleft())
        self._now_s += result.elapsed_s
        before_s = self._handled_s
        self._post(BatchCompleted(time_s=self._now_s, engine=_ENGINE, result=result))
        self._end_transfers()
        ended, self._ended = self._ended, []
        for program in ended:
            self._post(ProgramEnded(time_s=self._now_s, program=program, more=True))
            self._start_call(more=True)
        if ended:
            self._post(Tick(time_s=self._now_s))
        spent_s = self._handled_s - before_s
        measured = self.measured
        measured.num_messages += 1
        measured.num_ended += len(ended)
        measured.control_s += spent_s
        measured.engine_s += result.elapsed_s
        measured.slowest_s = max(measured.slowest_s, spent_s)

    def _end_transfers(self) -> None:
        moved = self._engine.transfer()
        if moved is not None:
            self._post(TransfersCompleted(time_s=self._now_s, engine=_ENGINE, ended=moved))

    def _start_call(self, *, more: bool) -> None:
        shape, draw, now_s = self._shape, self._random, self._now_s
        self._num_programs += 1
        number = self._num_programs
        program, queue = ProgramId(number), QueueId(1)
        tenant = TenantId(f"t{number % shape.num_tenants}")
        prompt = [number % 1024, number // 1024, *[5] * (draw.randint(*shape.prompt_tokens) - 2)]
        num_output = draw.randint(*shape.output_tokens)
        size = self._engine.info.pool.page_size
        pages = [PageId(i) for i in range(-(-(len(prompt) + num_output) // size))]
        self._post(
            ProgramStarted(
                time_s=now_s, program=program, tenant=tenant, form="session", name="", more=True
            )
        )
        self._post(
            Called(time_s=now_s, program=program, call=CreateQueue(queue, _MODEL), more=True)
        )
        decode = Decode(
            id=CommandId(2),
            context=pages,
            output=pages,
            tokens=prompt,
            position=0,
            sampler=_SAMPLER,
            stop=StopSpec(max_tokens=num_output),
        )
        commands: list[Command] = [AllocPages(id=CommandId(1), pages=pages), decode]
        self._post(Called(time_s=now_s, program=program, call=Issue(queue, commands), more=more))

    def _post(self, event: Event) -> None:
        started_s = time.thread_time()
        actions = self._controller.handle(event)
        self._handled_s += time.thread_time() - started_s
        for action in actions:
            if isinstance(action, Dispatch):
                assert isinstance(action.batch, Batch)
                self._in_flight.append(action.batch)
            elif isinstance(action, SetTimer):
                self._timer_s = action.at_s
            elif isinstance(action, Deliver) and action.last and action.command == 2:
                self._ended.append(action.program)
            elif isinstance(action, Fail):
                self.measured.num_failed += 1
                if action.command == 2:
                    self._ended.append(action.program)
