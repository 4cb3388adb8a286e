"""The control thread: the only thread that runs the controller.

Owns the controller, its inbox, its timer and the connections to engines. Producers on any thread
put events into the inbox. Each event gets its time here, in the order of handling, so that the
controller's time never goes back. User code and blocking calls never run on this thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import msgspec

from quire.control import Controller
from quire.core.actions import (
    Action,
    Deliver,
    Dispatch,
    Fail,
    ProgramClosed,
    QueuePlaced,
    SetTimer,
    Terminate,
)
from quire.core.batch_result import BatchResult, EngineAnswer, TransfersEnded
from quire.core.calls import CreateQueue
from quire.core.encoding import EncodeResult, EncoderInfo
from quire.core.engine_info import EngineInfo
from quire.core.errors import EngineLost, ErrorRecord, QuireError
from quire.core.events import (
    BatchCompleted,
    BatchEncoded,
    Called,
    EngineDown,
    EngineGivenUp,
    EngineUp,
    Event,
    EventAt,
    ExchangeEnded,
    ProgramEnded,
    Tick,
    TransfersCompleted,
)
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.ids import EngineId, ModelId, ProgramId
from quire.core.interfaces import ProgramClock, ReplySink
from quire.node.control.gathering import Gathering
from quire.node.control.model_users import ModelUsers
from quire.node.control.reply_router import NodeSink, ReplyRouter
from quire.node.loops import Wake, call_on

logger = logging.getLogger(__name__)

Send = Callable[[Any], None]

T = TypeVar("T")

_MAX_EVENTS_PER_ROUND = 256
"""After this number of events the loop looks at engines and timers before it continues."""

_IDLE_CHECK_S = 1.0
_CALL_TIMEOUT_S = 10.0


class Observer(Protocol):
    """Receives every event and the controller's actions, on the control thread. Must be quick."""

    def observe(self, event: Event, actions: Sequence[Action]) -> None: ...

    def observe_failure(self, event: Event, error: Exception) -> None:
        """The controller has raised ``error`` while it handled ``event``."""
        ...

    def flush(self) -> None:
        """The inbox is empty at the moment."""
        ...


class ControlThread:
    """``post``, ``post_gathered``, ``add_program``, ``call`` and ``submit`` are for any thread; the
    methods of engines are for coroutines that ``submit`` runs here.

    ``on_failure`` is called here when the controller has failed. ``replicas``: the number of
    engines of each model of the node. ``debug``: check the controller's invariants
    whenever it has been idle for a moment.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        clock: ProgramClock,
        observers: Sequence[Observer] = (),
        on_failure: Callable[[], None] | None = None,
        replicas: Mapping[ModelId, int] | None = None,
        debug: bool = False,
    ) -> None:
        self._controller = controller
        self.clock = clock
        self._observers = observers
        self._on_failure = on_failure
        self._debug = debug
        self._inbox: deque[EventAt] = deque()
        self._wake = Wake(self._round)
        self._gathering = Gathering(self._post_all)
        self._in_round = False
        self._replies = ReplyRouter()
        self._engines: dict[EngineId, Send] = {}
        self._users = ModelUsers(replicas or {})
        self._timer: asyncio.TimerHandle | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self._last_s = 0.0
        self._failure: QuireError | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._main, name="quire-control", daemon=True)

    @property
    def failure(self) -> QuireError | None:
        """Why the controller can no longer be trusted, or ``None``."""
        return self._failure

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._wake.begin(self._loop)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. All programs must have ended before. Idempotent."""
        if self._thread.is_alive():
            call_on(self._loop, self._loop.stop)
            self._thread.join()

    def post(self, event_at: EventAt) -> None:
        """Post at once, after the events that the running loop has gathered."""
        self._gathering.hurry()
        self._inbox.append(event_at)
        self._wake.ring()

    def post_gathered(self, event_at: EventAt) -> None:
        """Post together with all events that the running loop posts in this pass, in order:
        commands of programs that were woken together get into one batch message."""
        self._gathering.add(event_at)

    def _post_all(self, events_at: Sequence[EventAt]) -> None:
        self._inbox.extend(events_at)
        self._wake.ring()

    def add_program(
        self, program: ProgramId, loop: asyncio.AbstractEventLoop, sink: ReplySink
    ) -> None:
        """Deliver the program's replies to ``sink`` on ``loop``. Call it before the program's first
        event is posted.

        Raises:
            QuireError: the control thread has failed.
        """
        self._replies.add_program(program, loop, sink)
        if self._failure is not None:  # checked last: a failure before ``add_program`` missed it
            self._replies.forget(program)
            raise self._failure

    def answer_node(
        self,
        loop: asyncio.AbstractEventLoop,
        on_answer: Callable[[Deliver | Fail], None],
        on_failure: Callable[[ErrorRecord], None],
    ) -> None:
        """Send the answers to the node's own commands (numbers from ``NODE_COMMANDS`` on) to
        ``on_answer`` on ``loop``; ``on_failure`` is called when no more will come. Call it before
        the first such command."""
        self._replies.answer_node(NodeSink(loop, on_answer, on_failure))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``coroutine`` on the control thread's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, read: Callable[[Controller], T]) -> T:
        """Let ``read`` look at the controller, after all events that this thread has posted, and
        wait for its result.

        It takes as long as the current round: microseconds to a few milliseconds.
        """
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return read(self._controller)
        self._gathering.hurry()
        answer: Future[T] = Future()

        def look() -> None:
            self._round()
            try:
                answer.set_result(read(self._controller))
            except Exception as exc:
                answer.set_exception(exc)

        if not call_on(self._loop, look):  # it has ended just now
            return read(self._controller)
        return answer.result(_CALL_TIMEOUT_S)

    # -- engines, on the control thread ------------------------------------------------------------

    def engine_up(
        self, engine: EngineId, model: ModelId, info: EngineInfo | EncoderInfo, send: Send
    ) -> None:
        """Add an engine; raise ``ConfigError`` if the controller cannot serve it."""
        self._engines[engine] = send  # its first batch may be an answer to this very event
        try:
            self._handle_now(lambda t: EngineUp(time_s=t, engine=engine, model=model, info=info))
        except QuireError:
            del self._engines[engine]
            raise

    def engine_down(self, engine: EngineId, error: ErrorRecord) -> None:
        """Batch messages in flight fail; everything else waits for the engine to come back."""
        # Its connection is removed last: events in the inbox may still send over it.
        self._handle_now(lambda t: EngineDown(time_s=t, engine=engine, error=error))
        self._engines.pop(engine, None)

    def engine_given_up(self, engine: EngineId, model: ModelId, error: ErrorRecord) -> None:
        """``engine`` will not come back: fail what waits for it. If it was the last of its model,
        end the programs with queues for the model, which would wait for ever."""
        stranded = self._users.give_up_engine(model, error)
        if stranded is None:
            self.fail_waiting(engine, model, error)
            return
        for program in stranded:
            self._terminate(program, error)
        self._replies.flush()

    def fail_waiting(self, engine: EngineId, model: ModelId, error: ErrorRecord) -> None:
        """``engine`` will not come back: fail what waits for it alone. Its programs go on."""
        self._handle_now(lambda t: EngineGivenUp(time_s=t, engine=engine, model=model, error=error))

    def _terminate(self, program: ProgramId, error: ErrorRecord) -> None:
        """End the program with ``error``; later replies to its commands are dropped."""
        self._replies.add(Terminate(program=program, error=error))
        self._inbox.append(lambda t: ProgramEnded(time_s=t, program=program, reason=error.message))
        self._wake.ring()

    def engine_answered(self, engine: EngineId, answer: EngineAnswer | EncodeResult) -> None:
        """Handle an answer; raise ``EngineFault`` if nothing that it answers is in flight."""
        if engine not in self._engines:
            return  # it was lost between the answer and this call
        if isinstance(answer, BatchResult):
            self._handle_now(lambda t: BatchCompleted(time_s=t, engine=engine, result=answer))
        elif isinstance(answer, TransfersEnded):
            self._handle_now(lambda t: TransfersCompleted(time_s=t, engine=engine, ended=answer))
        elif isinstance(answer, SendEnded | ReceiveEnded):
            self._handle_now(lambda t: ExchangeEnded(time_s=t, engine=engine, ended=answer))
        else:
            self._handle_now(lambda t: BatchEncoded(time_s=t, engine=engine, result=answer))

    def _handle_now(self, event_at: EventAt) -> None:
        """Handle an event after those in the inbox, so that late commands get into the next batch
        message. A refusal of the controller (a ``QuireError``) is raised to the caller."""
        self._round()
        if self._failure is not None:
            return
        self._in_round = True
        try:
            self._handle(self._stamped(event_at))
        except QuireError:
            raise
        except Exception as exc:
            self._fail(exc)
        finally:
            self._in_round = False
            self._replies.flush()
        self._flush_observers()

    # -- rounds ------------------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._close_loop()

    def _close_loop(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _round(self) -> None:
        if self._in_round:
            return
        self._in_round = True
        try:
            self._handle_inbox()
        except Exception as exc:
            self._fail(exc)
        finally:
            self._in_round = False
        self._replies.flush()

    def _handle_inbox(self) -> None:
        if self._failure is not None:
            self._inbox.clear()  # every program has been ended; none waits for an answer
            return
        for left in reversed(range(_MAX_EVENTS_PER_ROUND)):
            if not self._inbox:
                break
            event = self._stamped(self._inbox.popleft())
            if left and self._inbox:
                event = msgspec.structs.replace(event, more=True)
            self._handle(event)
        if self._inbox:
            self._loop.call_soon(self._round)
            return
        self._flush_observers()

    def _stamped(self, event_at: EventAt) -> Event:
        self._last_s = max(self._last_s, self.clock.now_s())
        return event_at(self._last_s)

    def _flush_observers(self) -> None:
        for observer in self._observers:
            observer.flush()
        if self._debug and self._idle_check is None:
            self._idle_check = self._loop.call_later(_IDLE_CHECK_S, self._check_invariants)

    def _handle(self, event: Event) -> None:
        try:
            actions = self._controller.handle(event)
        except Exception as exc:
            for observer in self._observers:
                observer.observe_failure(event, exc)
            raise
        for observer in self._observers:
            observer.observe(event, actions)
        for action in actions:
            self._carry_out(action)
        if isinstance(event, Called) and isinstance(event.call, CreateQueue):
            self._used(event.program, event.call.model)
        elif isinstance(event, ProgramEnded):
            self._users.forget(event.program)
            self._replies.forget(event.program)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Deliver() | Fail():
                self._replies.add(action)
            case Dispatch():
                self._engines[action.engine](action.batch)
            case SetTimer():
                self._set_timer(action.at_s)
            case Terminate():
                self._replies.add(action)
                self._users.forget(action.program)
            case QueuePlaced() | ProgramClosed():
                pass  # for observers alone

    def _used(self, program: ProgramId, model: ModelId) -> None:
        """Note that ``program`` has a queue for ``model``; end it if the model is given up."""
        error = self._users.add(model, program)
        if error is not None:
            self._terminate(program, error)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, at_s - self.clock.now_s()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._inbox.append(lambda t: Tick(time_s=t))
        self._round()

    def _check_invariants(self) -> None:
        self._idle_check = None
        try:
            self._controller.check_invariants()
        except Exception as exc:
            self._fail(exc)
            self._replies.flush()

    def _fail(self, exc: Exception) -> None:
        """A bug of ours: no state of the controller can be trusted, so every program is ended."""
        logger.critical("the controller failed; every program is ended", exc_info=exc)
        self._failure = EngineLost(
            f"the node's controller failed ({type(exc).__name__}: {exc}): restart the node and "
            "report this with its event log"
        )
        self._inbox.clear()
        self._replies.terminate_all(self._failure.record())
        for observer in self._observers:
            observer.flush()
        if self._on_failure is not None:
            self._on_failure()
