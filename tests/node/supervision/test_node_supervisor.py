"""Starting, losing, restarting and giving up an engine, with transports that are told to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult, EngineAnswer
from quire.core.config import AdapterConfig, EngineConfig
from quire.core.encoding import EncodeResult
from quire.core.engine_info import AdapterInfo, EngineInfo
from quire.core.errors import EngineLost, ErrorRecord, ModelFormatError, QuireError
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import ProgramClock
from quire.core.system_clock import SystemClock
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import (
    EngineReadiness,
    SandboxHealth,
    SandboxState,
    node_health,
)
from quire.node.supervision.supervisor import EngineSupervisor, RestartLimits
from quire.testing import FakeEngine

CONFIG = EngineConfig(
    source="fake", name=ModelId("m"), adapters=(AdapterConfig("formal", "/adapters/formal"),)
)
ENGINE = EngineId("m")
FAST = RestartLimits(max_losses=3, first_pause_s=0.0, max_pause_s=0.0)


class Control:
    """Notes what control is told; everything runs on the test's own loop."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.changed = asyncio.Event()

    def engine_up(
        self, engine: EngineId, model: ModelId, info: EngineInfo, send: Callable[[Batch], None]
    ) -> None:
        self._tell("up")

    def engine_down(self, engine: EngineId, error: ErrorRecord) -> None:
        self._tell(error)

    def engine_given_up(self, engine: EngineId, model: ModelId, error: ErrorRecord) -> None:
        self._tell(("given up", error.message))

    def engine_answered(self, engine: EngineId, answer: EngineAnswer | EncodeResult) -> None:
        assert isinstance(answer, BatchResult)
        self._tell(answer.serial)

    def _tell(self, what: object) -> None:
        self.told.append(what)
        self.changed.set()

    async def want(self, num_told: int) -> list[object]:
        while len(self.told) < num_told:
            self.changed.clear()
            await self.changed.wait()
        return self.told


class Transport:
    """Starts (or raises ``error``); the test then calls ``lose``."""

    def __init__(self, error: QuireError | None, info: EngineInfo) -> None:
        self.error = error
        self.info = info
        self.closed = False
        self.closing: asyncio.Event | None = None
        """Set once its first ``close``, which then takes for ever, has begun."""
        self.owes_s = 0.0
        self.loaded: asyncio.Event | None = None
        """What ``start`` waits for, if there is one."""

    async def start(
        self, on_answer: Callable[[EngineAnswer], None], on_lost: Callable[[str], None]
    ) -> EngineInfo:
        if self.loaded is not None:
            await self.loaded.wait()
        if self.error is not None:
            raise self.error
        self.on_answer, self.lose = on_answer, on_lost
        return self.info

    def send(self, batch: Batch) -> None: ...

    def silent_s(self) -> float:
        return self.owes_s

    async def close(self) -> None:
        if self.closing is not None and not self.closing.is_set():
            self.closing.set()
            await asyncio.Event().wait()
        self.closed = True


class Hours:
    """A clock in virtual time, for whoever sleeps by it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._due: list[tuple[float, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        return self._now_s

    def unix_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._due.append((self._now_s + seconds, woken))
        await woken

    async def let_pass(self, seconds: float) -> None:
        until_s = self._now_s + seconds
        while True:
            for _ in range(10):  # until all that is woken sleeps again
                await asyncio.sleep(0)
            self._due = [one for one in self._due if not one[1].done()]
            if not self._due or min(due_s for due_s, _ in self._due) > until_s:
                break
            self._now_s, woken = min(self._due, key=lambda one: one[0])
            woken.set_result(None)
        self._now_s = until_s


class Rig:
    """Its transports up to ``num_hanging`` load until they are told that they have."""

    def __init__(
        self,
        *errors: QuireError | None,
        clock: ProgramClock | None = None,
        num_hanging: int = 0,
        limits: RestartLimits = FAST,
    ) -> None:
        self.num_hanging = num_hanging
        self.progress: OnProgress = lambda stage, fraction: None
        self.errors = list(errors)
        self.info = FakeEngine().info
        self.prepared: asyncio.Future[None] | None = None
        self.transports: list[Transport] = []
        self.configs: list[EngineConfig] = []
        self.control = Control()
        self.ready: list[EngineInfo] = []
        self.supervisor = EngineSupervisor(
            EngineId("e#0"),
            CONFIG,
            lambda config, on_progress, engine: self._make(config, on_progress),
            self.control,
            clock=clock or SystemClock(),
            prepare=self._prepare,
            on_ready=self.ready.append,
            on_change=lambda: None,
            limits=limits,
        )

    async def _prepare(self) -> None:
        if self.prepared is not None:
            await self.prepared

    def _make(self, config: EngineConfig, on_progress: OnProgress) -> Transport:
        self.configs.append(config)
        self.progress = on_progress
        made = Transport(self.errors.pop(0) if self.errors else None, self.info)
        if len(self.transports) < self.num_hanging:
            made.loaded = asyncio.Event()
        self.transports.append(made)
        return made


@pytest.fixture
async def rigs() -> AsyncIterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*errors: QuireError | None, **options: Any) -> Rig:
        made.append(Rig(*errors, **options))
        return made[-1]

    yield make
    for rig in made:
        await rig.supervisor.stop()
        assert all(transport.closed for transport in rig.transports)


async def test_who_hears_of_a_loss_finds_the_engine_not_ready(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs()
    found: list[EngineReadiness] = []
    down = rig.control.engine_down

    def hears(engine: EngineId, error: ErrorRecord) -> None:
        found.append(rig.supervisor.health.state)
        down(engine, error)

    monkeypatch.setattr(rig.control, "engine_down", hears)
    await rig.supervisor.start()
    await rig.supervisor.wait_ready()
    rig.transports[0].lose("gone")
    await rig.control.want(2)
    assert found == [EngineReadiness.RESTARTING]


async def test_a_lost_engine_comes_back(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    assert rig.supervisor.health.state is EngineReadiness.LOADING
    await rig.supervisor.start()
    await rig.supervisor.wait_ready()
    assert rig.supervisor.health.state is EngineReadiness.READY
    rig.transports[0].lose("killed")
    rig.transports[0].on_answer(BatchResult(serial=9, elapsed_s=0.0))  # too late to count
    told = await rig.control.want(3)
    assert told == ["up", EngineLost("engine e#0 is lost: killed").record(), "up"]
    assert (rig.supervisor.health.state, rig.supervisor.health.restarts) == (
        EngineReadiness.READY,
        1,
    )
    assert len(rig.ready) == 2


async def test_what_has_served_comes_up_again_without_an_adapter_that_is_gone(
    rigs: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    """Its first start needs all of them: a name that is misspelt must not go unnoticed."""
    rig = rigs()
    await rig.supervisor.start()
    await rig.supervisor.wait_ready()
    assert rig.supervisor.health.detail == ""
    gone = AdapterInfo(name="formal", digest="", rank=0, problem="no such directory")
    rig.info = FakeEngine(adapters=[gone]).info
    rig.transports[0].lose("killed")
    await rig.control.want(3)
    assert [config.adapters[0].is_needed for config in rig.configs] == [True, False]
    health = rig.supervisor.health
    assert health.state is EngineReadiness.READY
    assert health.detail == "without adapter formal: no such directory"
    assert health.detail in caplog.text


async def test_control_hears_of_an_engine_when_its_files_are_there_too(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs()
    rig.prepared = asyncio.get_running_loop().create_future()
    await rig.supervisor.start()
    for _ in range(5):  # the engine is up in fewer turns
        await asyncio.sleep(0)
    assert hasattr(rig.transports[0], "lose")
    assert rig.control.told == []
    assert rig.supervisor.health.state is EngineReadiness.LOADING
    rig.prepared.set_result(None)
    await rig.supervisor.wait_ready()
    assert rig.control.told == ["up"]


async def test_files_that_cannot_be_read_end_the_engine_at_once(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig.prepared = asyncio.get_running_loop().create_future()
    rig.prepared.set_exception(ModelFormatError("no tokenizer"))
    await rig.supervisor.start()
    with pytest.raises(ModelFormatError, match="no tokenizer"):
        await rig.supervisor.wait_ready()
    assert rig.control.told == [("given up", "no tokenizer")]
    assert len(rig.transports) == 1
    assert rig.transports[0].closed


async def test_results_reach_control(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    await rig.supervisor.start()
    await rig.supervisor.wait_ready()
    rig.transports[0].on_answer(BatchResult(serial=4, elapsed_s=0.0))
    assert await rig.control.want(2) == ["up", 4]


async def test_a_crash_loop_ends_with_its_reason_kept(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    await rig.supervisor.start()
    for number in range(3):
        await rig.control.want(2 * number + 1)
        rig.transports[number].lose(f"crash {number}")
    told = await rig.control.want(7)
    health = rig.supervisor.health
    assert health.state is EngineReadiness.FAILED
    assert "3 times within 60 s" in health.detail
    assert "crash 2" in health.detail
    assert told[-2:] == [
        EngineLost("engine e#0 is lost: crash 2").record(),
        ("given up", health.detail),
    ]
    assert len(rig.transports) == 3


async def test_a_bad_model_is_not_tried_again(rigs: Callable[..., Rig]) -> None:
    rig = rigs(ModelFormatError("truncated shard"))
    await rig.supervisor.start()
    with pytest.raises(ModelFormatError, match="truncated shard"):
        await rig.supervisor.wait_ready()
    assert rig.supervisor.health.state is EngineReadiness.FAILED
    assert len(rig.transports) == 1


async def test_a_process_that_dies_while_loading_is_tried_again(rigs: Callable[..., Rig]) -> None:
    rig = rigs(EngineLost("killed while loading"))
    await rig.supervisor.start()
    await rig.supervisor.wait_ready()
    assert rig.supervisor.health.restarts == 1


async def test_a_load_without_progress_is_ended_and_tried_again(rigs: Callable[..., Rig]) -> None:
    clock = Hours()
    rig = rigs(clock=clock, num_hanging=1)
    await rig.supervisor.start()
    await clock.let_pass(1000.0)
    rig.progress("loading weights", 0.25)
    await clock.let_pass(1700.0)
    rig.progress("loading weights", 0.25)  # said again, it is no progress
    assert rig.supervisor.health.state is EngineReadiness.LOADING
    await clock.let_pass(200.0)
    assert rig.transports[0].closed
    assert await rig.control.want(1) == ["up"]
    health = rig.supervisor.health
    assert (health.state, health.restarts, len(rig.transports)) == (EngineReadiness.READY, 1, 2)


async def test_why_a_load_was_ended_is_told(
    rigs: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hours()
    rig = rigs(clock=clock, num_hanging=2)
    await rig.supervisor.start()
    await clock.let_pass(1.0)
    rig.progress("loading weights", 0.25)
    await clock.let_pass(2000.0)
    health = rig.supervisor.health
    assert health.state is EngineReadiness.RESTARTING
    assert health.detail == (
        "e#0 has made no progress in loading for 1800 s (loading weights, 25%): look at the files "
        "of fake and the disk or network that they are on; what only takes longer needs a larger "
        "--load-stall-timeout (failed start 1 of at most 3 in a row; the next one follows after "
        "10 s)"
    )
    assert health.detail in caplog.text


async def test_loads_that_stall_again_and_again_are_given_up(
    rigs: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hours()
    limits = RestartLimits(max_losses=4, stall_pause_s=10.0)
    rig = rigs(clock=clock, num_hanging=9, limits=limits)
    await rig.supervisor.start()
    await clock.let_pass(0.0)
    begun_s = []
    for number in range(1, 5):
        assert len(rig.transports) == number
        begun_s.append(clock.now_s())
        while len(rig.transports) == number and clock.now_s() < begun_s[-1] + 4000:
            await clock.let_pass(10.0)
    assert [round(b - a) for a, b in pairwise(begun_s)] == [1810, 1820, 1840]
    with pytest.raises(EngineLost, match="lost 4 times in a row while it loaded"):
        await rig.supervisor.wait_ready()
    health = rig.supervisor.health
    assert health.state is EngineReadiness.FAILED
    assert "start the node again when the cause is removed" in health.detail
    assert "--load-stall-timeout" in health.detail
    assert health.detail in caplog.text
    assert rig.control.told == [("given up", health.detail)]


async def test_a_start_that_succeeds_forgives_those_before(rigs: Callable[..., Rig]) -> None:
    clock = Hours()
    rig = rigs(clock=clock, num_hanging=1, limits=RestartLimits(max_losses=2))
    await rig.supervisor.start()
    await clock.let_pass(1900.0)
    assert await rig.control.want(1) == ["up"]
    rig.num_hanging = 5
    rig.transports[-1].lose("killed")
    await rig.control.want(2)
    await clock.let_pass(1900.0)
    assert len(rig.transports) == 4
    assert rig.supervisor.health.state is EngineReadiness.RESTARTING


async def test_processes_that_die_late_in_each_load_are_given_up(rigs: Callable[..., Rig]) -> None:
    """Each load takes longer than the window in which losses are counted."""
    clock = Hours()
    rig = rigs(
        *(EngineLost(f"killed at 90 % ({number})") for number in range(1, 4)),
        clock=clock,
        num_hanging=3,
        limits=RestartLimits(max_losses=3),
    )
    await rig.supervisor.start()
    for number in range(1, 4):
        await clock.let_pass(500.0)
        assert len(rig.transports) == number
        loaded = rig.transports[-1].loaded
        assert loaded is not None
        loaded.set()
        await clock.let_pass(10.0)
    with pytest.raises(EngineLost, match=r"lost 3 times in a row .* killed at 90 % \(3\)"):
        await rig.supervisor.wait_ready()


async def test_a_load_that_goes_on_slowly_is_left_alone(rigs: Callable[..., Rig]) -> None:
    clock = Hours()
    rig = rigs(clock=clock, num_hanging=1)
    await rig.supervisor.start()
    for percent in range(1, 100):
        await clock.let_pass(1700.0)
        rig.progress("loading weights", percent / 100)
    (transport,) = rig.transports
    assert transport.loaded is not None
    transport.loaded.set()
    assert await rig.control.want(1) == ["up"]
    await clock.let_pass(10_000.0)  # one that is ready need not tell of progress
    assert rig.supervisor.health.state is EngineReadiness.READY


async def test_stopping_is_idempotent_and_answers_those_who_wait(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    waiting = asyncio.create_task(rig.supervisor.wait_ready())
    await asyncio.sleep(0)
    await rig.supervisor.stop()
    await rig.supervisor.stop()
    with pytest.raises(EngineLost, match="stopped"):
        await waiting
    assert rig.supervisor.health.state is EngineReadiness.STOPPED


async def test_what_is_stopped_while_it_closes_is_closed_to_the_end(
    rigs: Callable[..., Rig],
) -> None:
    """Two engines cannot be started: the node stops the second while that one is ended."""
    rig = rigs()
    await rig.supervisor.start()
    await rig.supervisor.wait_ready()
    [transport] = rig.transports
    closing = transport.closing = asyncio.Event()
    transport.lose("gone")
    await closing.wait()
    await rig.supervisor.stop()
    assert transport.closed


async def test_a_bug_in_a_transport_is_told(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig._make = lambda config, on_progress: (_ for _ in ()).throw(RuntimeError("a bug"))  # type: ignore[method-assign]
    await rig.supervisor.start()
    with pytest.raises(EngineLost, match="a bug"):
        await rig.supervisor.wait_ready()


def test_node_health_is_the_sum_of_its_engines(rigs: Callable[..., Rig]) -> None:
    ready, lost = Rig().supervisor, Rig().supervisor
    ready._move(EngineReadiness.READY)
    lost._move(EngineReadiness.RESTARTING, "killed")
    engines = {EngineId("a"): ready.health, EngineId("b"): lost.health}
    health = node_health(engines, {}, draining=False, failure=None)
    assert (health.ready, health.alive) == (False, False)
    assert health.detail == "engine b is restarting: killed"
    assert health.models == {"a": True, "b": False}
    replicas = {EngineId("a#0"): ready.health, EngineId("a#1"): lost.health}
    assert node_health(replicas, {}, draining=False, failure=None).models == {"a": True}
    only = {EngineId("a"): ready.health}
    assert node_health(only, {}, draining=False, failure=None).ready
    draining = node_health(only, {}, draining=True, failure=None)
    assert (draining.ready, draining.alive) == (False, True)
    failed = node_health(only, {}, draining=False, failure="a bug")
    assert (failed.alive, failed.models) == (False, {"a": False})
    paused = {"0": SandboxHealth(SandboxState.PAUSED, "lost 5 times", 5)}
    health = node_health(only, paused, draining=False, failure=None)
    assert (health.ready, health.alive, health.detail) == (True, True, "sandbox 0: lost 5 times")
    without = {"0": SandboxHealth(SandboxState.UNAVAILABLE, "wasmtime is not installed")}
    health = node_health(only, without, draining=False, failure=None)
    assert (health.ready, health.detail) == (True, "")


async def test_an_engine_that_gives_no_sign_of_life_is_not_healthy() -> None:
    rig = Rig(None)
    await rig.supervisor.start()
    await rig.supervisor.wait_ready()
    (transport,) = rig.transports
    for owes_s, state in ((9.0, EngineReadiness.READY), (12.0, EngineReadiness.SILENT)):
        transport.owes_s = owes_s
        health = rig.supervisor.health
        assert health.state is state
        told = node_health({EngineId("m"): health}, {}, draining=False, failure=None)
        assert told.alive is told.ready is (state is EngineReadiness.READY)
    assert "no sign of life for 12 s" in told.detail
    transport.owes_s = 0.0
    assert rig.supervisor.health.state is EngineReadiness.READY
    await rig.supervisor.stop()
    assert rig.supervisor.health.state is EngineReadiness.STOPPED


async def test_a_start_that_is_given_up_ends_its_process_before_the_stop_returns(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts cannot be read while the process begins, and another instance ends the node."""
    rig = rigs()
    rig.prepared = asyncio.get_running_loop().create_future()
    is_ending, has_ended = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def start(self: Transport, *heard: object) -> EngineInfo:
        try:
            await asyncio.Event().wait()
        finally:
            is_ending.set()
            await has_ended.wait()
            ended.append("process")
        raise AssertionError("it is never cancelled")

    monkeypatch.setattr(Transport, "start", start)
    await rig.supervisor.start()
    for _ in range(5):
        await asyncio.sleep(0)
    rig.prepared.set_exception(ModelFormatError("no texts"))
    await is_ending.wait()
    stopping = asyncio.create_task(rig.supervisor.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not stopping.done()
    has_ended.set()
    await stopping
    assert ended == ["process"]
