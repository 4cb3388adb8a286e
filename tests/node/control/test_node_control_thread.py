"""The control thread around a scripted controller: stamping, execution, delivery, failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from quire.core.actions import Action, Deliver, Dispatch, Fail, ReplyValue, SetTimer, Terminate
from quire.core.batch import Batch
from quire.core.calls import CreateQueue
from quire.core.commands import Sampled
from quire.core.errors import ConfigError, EngineLost, ErrorRecord
from quire.core.events import Called, EngineUp, Event, ProgramEnded, ProgramStarted, Tick
from quire.core.ids import CommandId, EngineId, ModelId, ProgramId, QueueId, TenantId
from quire.core.system_clock import SystemClock
from quire.node.control.control_thread import ControlThread
from quire.testing import FakeEngine

PROGRAM = ProgramId(1)
ERROR = ErrorRecord("forbidden", "no")


class ScriptedController:
    """Answers each event with what the script says; remembers events and its thread."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[int] = set()
        self.script: Callable[[Event], list[Action]] = lambda event: []
        self.sound = True

    def handle(self, event: Event) -> list[Action]:
        self.events.append(event)
        self.threads.add(threading.get_ident())
        return self.script(event)

    def check_invariants(self) -> None:
        assert self.sound, "a page has two owners"


class Sink:
    """Collects deliveries in order; ``want(n)`` waits for so many."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self._more = asyncio.Event()

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        self._add((command, reply, last))

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        self._add((command, error))

    def on_terminated(self, error: ErrorRecord) -> None:
        self._add(error)

    def _add(self, item: object) -> None:
        self.got.append(item)
        self._more.set()

    async def want(self, num_items: int) -> list[object]:
        while len(self.got) < num_items:
            self._more.clear()
            await self._more.wait()
        return self.got


class Rig:
    def __init__(self, debug: bool = False) -> None:
        self.controller = ScriptedController()
        self.control = ControlThread(
            self.controller,  # type: ignore[arg-type]
            clock=SystemClock(),
            replicas={ModelId("gone"): 1},
            debug=debug,
        )
        self.control.start()
        self.sink = Sink()

    def start_program(self, program: ProgramId = PROGRAM) -> None:
        self.control.add_program(program, asyncio.get_running_loop(), self.sink)
        self.control.post(
            lambda t: ProgramStarted(
                time_s=t, program=program, tenant=TenantId("t"), form="inferlet", name="p"
            )
        )

    async def on_control(self, call: Callable[[], object]) -> None:
        async def run() -> None:
            call()

        await asyncio.wrap_future(self.control.submit(run()))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.control.stop()


def deliver(number: int, program: ProgramId = PROGRAM) -> Deliver:
    return Deliver(program=program, command=CommandId(number))


async def test_events_of_many_threads_come_in_order_of_time_on_one_thread(rig: Rig) -> None:
    def produce() -> None:
        for _ in range(500):
            rig.control.post(lambda t: Tick(time_s=t))

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await rig.on_control(lambda: rig.control._round())
    while len(rig.controller.events) < 2000:
        await rig.on_control(lambda: None)
    times = [event.time_s for event in rig.controller.events]
    assert times == sorted(times)
    assert rig.controller.threads == {rig.control._thread.ident}


async def test_replies_arrive_in_order_on_the_programs_loop(rig: Rig) -> None:
    fail = Fail(program=PROGRAM, command=CommandId(2), error=ERROR)
    rig.controller.script = lambda event: [deliver(1), fail, deliver(3)]
    rig.start_program()
    assert await rig.sink.want(3) == [(1, None, True), (2, ERROR), (3, None, True)]


async def test_what_was_done_before_a_reply_arrives_before_it(rig: Rig) -> None:
    before = (CommandId(1), CommandId(2))
    told = Deliver(program=PROGRAM, command=CommandId(3), reply=Sampled([7]), done_before=before)
    rig.controller.script = lambda event: [told, deliver(4)]
    rig.start_program()
    expected = [(1, None, True), (2, None, True), (3, Sampled([7]), True), (4, None, True)]
    assert await rig.sink.want(4) == expected


async def test_one_call_per_loop_and_round(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    from quire.node.control import reply_router

    original = reply_router._deliver
    monkeypatch.setattr(
        reply_router, "_deliver", lambda items: (rounds.append(items), original(items))
    )
    rig.controller.script = lambda event: [deliver(n) for n in range(10)]
    rig.start_program()
    await rig.sink.want(10)
    assert len(rounds) == 1


async def test_a_sink_that_raises_costs_no_other_reply(rig: Rig) -> None:
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    class Broken(Sink):
        def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
            raise RuntimeError("a bug of the sink")

    broken = ProgramId(9)
    rig.control.add_program(broken, asyncio.get_running_loop(), Broken())
    rig.controller.script = lambda event: [deliver(1, broken), deliver(2)]
    rig.start_program()
    assert await rig.sink.want(1) == [(2, None, True)]
    assert "a bug of the sink" in str(reported[0]["exception"])


async def test_a_terminated_or_ended_program_gets_nothing_more(rig: Rig) -> None:
    script = {
        ProgramStarted: [Terminate(program=PROGRAM, error=ERROR), deliver(1)],
        Tick: [deliver(2, ProgramId(2))],
        ProgramEnded: [deliver(3, ProgramId(2))],
    }
    rig.controller.script = lambda event: script[type(event)]  # type: ignore[index, return-value]
    rig.start_program()
    assert await rig.sink.want(1) == [ERROR]
    rig.control.add_program(ProgramId(2), asyncio.get_running_loop(), rig.sink)
    rig.control.post(lambda t: Tick(time_s=t))
    rig.control.post(lambda t: ProgramEnded(time_s=t, program=ProgramId(2)))
    rig.control.post(lambda t: Tick(time_s=t))
    await rig.sink.want(3)
    await rig.on_control(lambda: None)
    assert rig.sink.got == [ERROR, (2, None, True), (3, None, True)]


async def test_batches_go_to_their_engine_and_stale_results_go_nowhere(rig: Rig) -> None:
    sent: list[Batch] = []
    engine, info = EngineId("e"), FakeEngine().info
    batch = Batch(serial=1)

    def script(event: Event) -> list[Action]:
        return [Dispatch(engine=engine, batch=batch)] if isinstance(event, Tick) else []

    rig.controller.script = script
    await rig.on_control(lambda: rig.control.engine_up(engine, ModelId("m"), info, sent.append))
    rig.control.post(lambda t: Tick(time_s=t))
    result = FakeEngine().execute(Batch(serial=1))
    await rig.on_control(lambda: rig.control.engine_answered(engine, result))
    await rig.on_control(lambda: rig.control.engine_down(engine, ERROR))
    await rig.on_control(lambda: rig.control.engine_answered(engine, result))
    assert sent == [batch]
    kinds = [type(event).__name__ for event in rig.controller.events]
    assert kinds == ["EngineUp", "Tick", "BatchCompleted", "EngineDown"]


async def test_what_is_posted_as_an_engine_goes_down_is_lost_with_it(rig: Rig) -> None:
    """The controller learns of the loss behind what is in the inbox, and may send until then."""
    sent: list[Batch] = []
    engine, info = EngineId("e"), FakeEngine().info
    batch = Batch(serial=1)

    def script(event: Event) -> list[Action]:
        return [Dispatch(engine=engine, batch=batch)] if isinstance(event, Tick) else []

    rig.controller.script = script
    await rig.on_control(lambda: rig.control.engine_up(engine, ModelId("m"), info, sent.append))

    def go_down() -> None:
        rig.control.post(lambda t: Tick(time_s=t))  # its round comes after this call
        rig.control.engine_down(engine, ERROR)

    await rig.on_control(go_down)
    assert rig.control.failure is None
    assert sent == [batch]
    kinds = [type(event).__name__ for event in rig.controller.events]
    assert kinds == ["EngineUp", "Tick", "EngineDown"]


async def test_a_later_timer_replaces_an_earlier_one(rig: Rig) -> None:
    ticked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def script(event: Event) -> list[Action]:
        if isinstance(event, ProgramStarted):
            return [SetTimer(at_s=event.time_s + 3600), SetTimer(at_s=event.time_s)]
        loop.call_soon_threadsafe(ticked.set)
        return []

    rig.controller.script = script
    rig.start_program()
    await ticked.wait()
    assert [type(event) for event in rig.controller.events] == [ProgramStarted, Tick]


async def test_a_replaced_timer_does_not_fire(rig: Rig) -> None:
    rig.controller.script = lambda event: [
        SetTimer(at_s=event.time_s),
        SetTimer(at_s=event.time_s + 3600),
    ]
    rig.start_program()

    async def wait_for_a_later_timer() -> None:
        fired = asyncio.Event()
        asyncio.get_running_loop().call_later(0.0, fired.set)
        await fired.wait()

    await rig.on_control(lambda: None)
    await asyncio.wrap_future(rig.control.submit(wait_for_a_later_timer()))
    assert [type(event) for event in rig.controller.events] == [ProgramStarted]


class JumpingClock(SystemClock):
    """Reads what it is given, one after the other."""

    def __init__(self, *readings: float) -> None:
        self._readings = iter(readings)

    def now_s(self) -> float:
        return next(self._readings)


async def test_time_never_goes_back() -> None:
    controller = ScriptedController()
    control = ControlThread(controller, clock=JumpingClock(5.0, 3.0, 7.0))  # type: ignore[arg-type]
    control.start()
    for _ in range(3):
        control.post(lambda t: Tick(time_s=t))
    control.call(lambda controller: None)
    control.stop()
    assert [event.time_s for event in controller.events] == [5.0, 5.0, 7.0]


async def test_a_failing_controller_ends_every_program_and_takes_no_new_one(rig: Rig) -> None:
    def script(event: Event) -> list[Action]:
        if isinstance(event, Tick):
            raise AssertionError("a page was freed twice")
        return []

    rig.controller.script = script
    rig.start_program()
    rig.control.post(lambda t: Tick(time_s=t))
    (error,) = await rig.sink.want(1)
    assert isinstance(error, ErrorRecord)
    assert "a page was freed twice" in error.message
    assert rig.control.failure is not None
    with pytest.raises(EngineLost, match="event log"):
        rig.start_program(ProgramId(2))
    rig.control.post(lambda t: Tick(time_s=t))
    assert rig.control.call(lambda controller: len(controller.events)) == 2  # type: ignore[attr-defined]


async def test_debug_checks_invariants_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.node.control.control_thread._IDLE_CHECK_S", 0.0)
    rig = Rig(debug=True)
    rig.controller.sound = False
    rig.start_program()
    (error,) = await rig.sink.want(1)
    assert "two owners" in str(error)
    rig.control.stop()


class CountingObserver:
    def __init__(self) -> None:
        self.seen: list[tuple[Event, Sequence[Action]]] = []
        self.num_flushes = 0

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        self.seen.append((event, actions))

    def observe_failure(self, event: Event, error: Exception) -> None:
        raise AssertionError(f"the controller failed: {error!r}")

    def flush(self) -> None:
        self.num_flushes += 1


async def test_observers_see_each_event_with_its_actions() -> None:
    observer, controller = CountingObserver(), ScriptedController()
    control = ControlThread(controller, clock=SystemClock(), observers=[observer])  # type: ignore[arg-type]
    control.start()
    controller.script = lambda event: [SetTimer(at_s=event.time_s + 3600)]
    control.post(lambda t: Tick(time_s=t))
    control.call(lambda controller: None)
    control.stop()
    assert [event for event, _ in observer.seen] == controller.events
    assert [type(action) for _, actions in observer.seen for action in actions] == [SetTimer]
    assert observer.num_flushes


async def test_a_look_at_a_thread_that_ends_just_now_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.node.control.control_thread._CALL_TIMEOUT_S", 0.01)
    control = ControlThread(ScriptedController(), clock=SystemClock())  # type: ignore[arg-type]
    control.start()
    control.stop()
    monkeypatch.setattr(control._thread, "is_alive", lambda: True)
    assert control.call(lambda controller: "read") == "read"


async def test_programs_of_a_model_that_is_given_up_end_with_its_reason(rig: Rig) -> None:
    model, other = ModelId("gone"), ModelId("other")

    def create_queue(program: ProgramId, of: ModelId) -> None:
        rig.control.post(
            lambda t: Called(time_s=t, program=program, call=CreateQueue(QueueId(1), of))
        )

    rig.start_program(ProgramId(1))
    create_queue(ProgramId(1), model)
    rig.start_program(ProgramId(2))
    create_queue(ProgramId(2), other)
    await rig.on_control(rig.control._round)
    await rig.on_control(lambda: rig.control.engine_given_up(EngineId("gone#0"), model, ERROR))
    assert await rig.sink.want(1) == [ERROR]
    await rig.on_control(lambda: None)
    ended = [event for event in rig.controller.events if isinstance(event, ProgramEnded)]
    assert [(event.program, event.reason) for event in ended] == [(1, "no")]
    create_queue(ProgramId(2), model)  # by one who still has the model's name
    assert await rig.sink.want(2) == [ERROR, ERROR]


async def test_what_the_controller_refuses_of_an_engine_is_the_supervisors(rig: Rig) -> None:
    def script(event: Event) -> list[Action]:
        if isinstance(event, EngineUp):
            raise ConfigError("no such layer group")
        return []

    rig.controller.script = script
    engine, info = EngineId("e"), FakeEngine().info
    with pytest.raises(ConfigError, match="layer group"):
        await rig.on_control(
            lambda: rig.control.engine_up(engine, ModelId("m"), info, lambda batch: None)
        )
    assert rig.control.failure is None
