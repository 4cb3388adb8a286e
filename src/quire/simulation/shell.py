"""``VirtualShell``: a controller and its engines in virtual time, one event after another.

Owns the clock, the messages in flight to engines and the controller's timer. Engines run in
parallel: a message begins when it is sent or when the previous one on the same engine ends, and
takes the time in its result. The caller decides which event comes next: ``Simulation`` takes the
earliest, a test moves engines by hand.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from quire.core.actions import (
    Action,
    Deliver,
    Dispatch,
    Fail,
    ProgramClosed,
    SetTimer,
    Terminate,
)
from quire.core.batch import Batch
from quire.core.batch_result import BatchResult, TransfersEnded
from quire.core.encoding import EncodeBatch, EncoderCore, EncodeResult
from quire.core.errors import EngineFault, EngineLost
from quire.core.events import (
    BatchCompleted,
    BatchEncoded,
    EngineDown,
    EngineUp,
    Event,
    ExchangeEnded,
    Tick,
    TransfersCompleted,
)
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import EngineCore
from quire.simulation.clock import VirtualClock
from quire.simulation.control_core import ControlCore
from quire.simulation.overhead import Overhead, num_rows

Answer = Deliver | Fail | Terminate
"""Actions that answer programs."""


@dataclass(slots=True)
class _Message:
    """``result`` is set once the engine has run the message to learn its duration."""

    batch: Batch | EncodeBatch
    sent_s: float
    num_rows: int
    result: BatchResult | EncodeResult | None = None


class _Engine:
    """An engine that is up, the messages sent to it, and when its last message ended. ``number``:
    how many came up before."""

    def __init__(self, core: EngineCore | EncoderCore, number: int, overhead: Overhead) -> None:
        self.core = core
        self.number = number
        self.overhead = overhead
        # checked once: a check of a runtime protocol takes as long as running a small message
        self.memory_core = core if isinstance(core, EngineCore) else None
        self.messages: deque[_Message] = deque()
        self.free_s = 0.0

    def execute(self, batch: Batch | EncodeBatch) -> BatchResult | EncodeResult:
        """Run a message of the core's kind: engines take ``Batch``, encoders ``EncodeBatch``."""
        if isinstance(batch, Batch):
            assert self.memory_core is not None
            return self.memory_core.execute(batch)
        assert not isinstance(self.core, EngineCore)
        return self.core.encode(batch)


class VirtualShell:
    """``on_answer`` receives the actions for programs, ``on_closed`` the usage of programs that
    leave the process table, ``on_dispatch`` the messages to engines, ``on_run`` a message once its
    begin and end are known, ``on_fault`` the engines' faults; without it a faulty engine is lost.
    ``check``: verify the controller's invariants after every event."""

    def __init__(
        self,
        controller: ControlCore,
        *,
        clock: VirtualClock | None = None,
        check: bool = False,
        on_answer: Callable[[Answer], None] | None = None,
        on_closed: Callable[[ProgramClosed], None] | None = None,
        on_dispatch: Callable[[Dispatch], None] | None = None,
        on_run: Callable[[Batch, float, float], None] | None = None,
        on_fault: Callable[[EngineId, EngineFault], None] | None = None,
    ) -> None:
        self.controller = controller
        self.clock = clock or VirtualClock()
        self.timer_s: float | None = None
        self.check = check
        self._on_answer = on_answer
        self._on_closed = on_closed
        self._on_dispatch = on_dispatch
        self._on_run = on_run
        self._on_fault = on_fault or self._lose_faulty
        self._engines: dict[EngineId, _Engine] = {}
        self._numbers = count()
        self._ends: list[tuple[float, int, int, EngineId, _Message]] = []
        self._num_read = 0
        self._unread: list[tuple[int, EngineId]] = []

    @property
    def now_s(self) -> float:
        return self.clock.now_s()

    def post(self, event: Event) -> list[Action]:
        """Hand ``event`` to the controller, carry out its actions and return them."""
        actions = self.controller.handle(event)
        for action in actions:
            if type(action) is Deliver and self._on_answer is not None:
                self._on_answer(action)  # as for each row of a message
            else:
                self._carry_out(action)
        if self.check:
            self.controller.check_invariants()
        return actions

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Answer):
            if self._on_answer is not None:
                self._on_answer(action)
        elif isinstance(action, Dispatch):
            self._dispatch(action)
        elif isinstance(action, SetTimer):
            self.timer_s = action.at_s
        elif isinstance(action, ProgramClosed) and self._on_closed is not None:
            self._on_closed(action)

    def _dispatch(self, action: Dispatch) -> None:
        engine = self._engines.get(action.engine)
        assert engine is not None, f"dispatch to engine {action.engine}, which is down"
        engine.messages.append(_Message(action.batch, self.now_s, num_rows(action.batch)))
        if len(engine.messages) == 1:
            self._unread.append((engine.number, action.engine))
        if self._on_dispatch is not None:
            self._on_dispatch(action)

    # -- engines -----------------------------------------------------------------------------------

    @property
    def engines(self) -> dict[EngineId, EngineCore]:
        """The engines with memory that are up."""
        cores = {engine_id: engine.memory_core for engine_id, engine in self._engines.items()}
        return {known: core for known, core in cores.items() if core is not None}

    def start_engine(
        self,
        engine_id: EngineId,
        engine: EngineCore | EncoderCore,
        model: ModelId | None = None,
        *,
        overhead: Overhead | None = None,
    ) -> None:
        """Bring an engine up, for the first time or again after ``lose_engine``. ``model``: the
        name that queues use, by default the engine's own. ``overhead``: none by default."""
        self._engines[engine_id] = _Engine(engine, next(self._numbers), overhead or Overhead())
        name = model or ModelId(engine.info.model)
        self.post(EngineUp(time_s=self.now_s, engine=engine_id, model=name, info=engine.info))

    def lose_engine(self, engine_id: EngineId, reason: str) -> None:
        """Lose the engine with its memory and everything in flight on it."""
        core = self._engines.pop(engine_id).core
        if isinstance(core, EngineCore):
            core.close()
        error = EngineLost(f"engine {engine_id} is lost: {reason}").record()
        self.post(EngineDown(time_s=self.now_s, engine=engine_id, error=error))

    def _lose_faulty(self, engine_id: EngineId, fault: EngineFault) -> None:
        self.lose_engine(engine_id, fault.message)

    def num_in_flight(self, engine_id: EngineId) -> int:
        engine = self._engines.get(engine_id)
        return 0 if engine is None else len(engine.messages)

    @property
    def is_busy(self) -> bool:
        """Whether any engine has a message to run."""
        return any(engine.messages for engine in self._engines.values())

    def next_end(self) -> tuple[float, EngineId] | None:
        """The end of the running message that ends first, and its engine; ties go to the engine
        that came up first. An engine that faults while its message is evaluated is lost."""
        if self._unread:
            self._read_new()
        ends, engines = self._ends, self._engines
        while ends:
            end_s, _, _, engine_id, message = ends[0]
            engine = engines.get(engine_id)
            if engine is not None and engine.messages and engine.messages[0] is message:
                return end_s, engine_id
            heapq.heappop(ends)  # it was taken, or lost with its engine
        return None

    def _read_new(self) -> None:
        """Run the messages that have become the oldest of their engines, to learn their ends, in
        the order in which the engines came up."""
        while self._unread:
            if len(self._unread) > 1:
                self._unread.sort()
            number, engine_id = self._unread.pop(0)
            engine = self._engines.get(engine_id)
            if engine is None or engine.number != number or not engine.messages:
                continue
            message = engine.messages[0]
            end_s = self._end_s(engine_id)
            if end_s is not None:
                self._num_read += 1
                heapq.heappush(self._ends, (end_s, number, self._num_read, engine_id, message))

    def finish_message(self, engine_id: EngineId) -> bool:
        """Advance time until the engine's oldest message has run and post its result; False if it
        has no message."""
        end_s = self._end_s(engine_id)
        if end_s is None:
            return False
        engine = self._engines[engine_id]
        result = engine.messages.popleft().result
        assert result is not None
        engine.free_s = end_s
        if engine.messages:
            self._unread.append((engine.number, engine_id))
        self.clock.advance_to(end_s)
        if isinstance(result, BatchResult):
            self.post(BatchCompleted(time_s=self.now_s, engine=engine_id, result=result))
        else:
            self.post(BatchEncoded(time_s=self.now_s, engine=engine_id, result=result))
        return True

    def go_on_with_transfers(self, engine_id: EngineId) -> bool:
        """Let the engine continue its transfers, and its exchanges with others, and post its
        report; False if there is none. Takes no time: the engine's messages include it."""
        engine = self._engines.get(engine_id)
        core = None if engine is None else engine.memory_core
        ended = None if core is None else core.transfer()
        if ended is None:
            return False
        if isinstance(ended, TransfersEnded):
            self.post(TransfersCompleted(time_s=self.now_s, engine=engine_id, ended=ended))
        else:
            self.post(ExchangeEnded(time_s=self.now_s, engine=engine_id, ended=ended))
        return True

    def _end_s(self, engine_id: EngineId) -> float | None:
        """The end of the engine's oldest message; None if it has none or was lost running it."""
        engine = self._engines.get(engine_id)
        if engine is None or not engine.messages:
            return None
        message = engine.messages[0]
        is_new = message.result is None
        if message.result is None:
            try:
                message.result = engine.execute(message.batch)
            except EngineFault as exc:
                self._on_fault(engine_id, exc)
                return None
        begin_s = engine.overhead.begin_s(message.sent_s, engine.free_s, message.num_rows)
        end_s = begin_s + message.result.elapsed_s
        if is_new and self._on_run is not None and isinstance(message.batch, Batch):
            self._on_run(message.batch, begin_s, end_s)
        return end_s

    # -- the timer ---------------------------------------------------------------------------------

    def fire_timer(self) -> None:
        """Advance time to the timer and post its tick."""
        assert self.timer_s is not None, "no timer is set"
        self.clock.advance_to(self.timer_s)
        self.timer_s = None
        self.post(Tick(time_s=self.now_s))
