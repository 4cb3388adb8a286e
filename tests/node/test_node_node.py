"""The node as a whole: start, readiness, models, loss of engines, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_node import TENANT, StartNode, fake_config, fake_model_files, fake_transport

import quire.node
from quire.core.batch import Batch
from quire.core.batch_result import BatchResult
from quire.core.config import EngineConfig, NodeConfig
from quire.core.errors import (
    ConfigError,
    Draining,
    EngineFault,
    EngineLost,
    ModelFormatError,
    ModelNotFound,
    ProgramTerminated,
    QuireError,
)
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import EngineTransport
from quire.core.scheduler_config import SchedulerConfig
from quire.node import EngineReadiness, ModelFiles, Node, RestartLimits, resolve_source
from quire.node.transports import InProcessTransport, ZeroMQTransport
from quire.programs.api import Api
from quire.programs.builtin import CompletionRequest, complete
from quire.programs.inferlet import inferlet
from quire.testing import FakeEngine

FAKE = EngineId("fake#0")


def request(max_tokens: int = 5, model: str | None = None) -> CompletionRequest:
    return CompletionRequest(
        prompt=(1, 2, 3),
        max_tokens=max_tokens,
        ignore_eos=True,
        model=None if model is None else ModelId(model),
    )


async def outcome(node: Node, asked: CompletionRequest) -> int | QuireError:
    """Tokens, or the error that ended the call."""
    call = node.session(TENANT).call(complete, asked)
    try:
        num_tokens = sum([len(chunk.token_ids) async for chunk in call])
    except QuireError as exc:
        return exc
    finally:
        await call.wait_closed()
    return num_tokens


async def test_a_node_starts_serves_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    node = Node(fake_config(), transport_factory=fake_transport, model_files=fake_model_files)
    assert not node.health().ready
    await node.start()
    assert node.health().ready
    assert await outcome(node, request()) == 5
    await node.stop()
    await node.stop()
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in left if name.startswith("quire")] == []
    assert node.health().engines[FAKE].state is EngineReadiness.STOPPED


async def test_what_one_part_raises_at_its_end_keeps_no_other_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk under the store must not leave engines and threads behind."""
    before = set(threading.enumerate())
    node = Node(fake_config(), transport_factory=fake_transport, model_files=fake_model_files)
    await node.start()
    close = node._parts.services.close

    async def close_and_fail() -> None:
        await close()
        raise OSError("no space left on device")

    monkeypatch.setattr(node._parts.services, "close", close_and_fail)
    with pytest.raises(OSError, match="no space left"):
        await node.stop()
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in left if name.startswith("quire")] == []
    assert node.health().engines[FAKE].state is EngineReadiness.STOPPED


async def test_models_are_found_by_name_and_the_first_is_the_default(
    start_node: StartNode,
) -> None:
    node = await start_node(fake_config("big", "small"))
    assert [model.id for model in node.models()] == ["big", "small"]
    assert node.model().id == "big"
    assert node.model("small").tokenizer.encode("a") == [97]
    with pytest.raises(ModelNotFound, match="served: big, small"):
        node.model("huge")
    assert await outcome(node, request(model="small")) == 5


async def test_starting_without_waiting_tells_that_it_loads(start_node: StartNode) -> None:
    loaded = threading.Event()

    def slow(config: EngineConfig) -> EngineTransport:
        def load() -> FakeEngine:
            loaded.wait()
            return FakeEngine()

        return InProcessTransport("fake", load)

    node = Node(fake_config(), transport_factory=slow, model_files=fake_model_files)
    await node.start(wait_ready=False)
    assert (node.health().ready, node.health().alive) == (False, True)
    assert "loading" in node.health().detail
    assert node.models() == ()
    with pytest.raises(EngineLost, match="still being loaded"):
        node.model()
    loaded.set()
    await node.wait_health(lambda health: health.ready)
    assert await outcome(node, request()) == 5
    await node.stop()


async def test_files_that_cannot_be_read_fail_the_model_and_the_start(
    start_node: StartNode,
) -> None:
    def broken(config: EngineConfig) -> ModelFiles:
        raise ModelFormatError("tokenizer.json is cut off")

    with pytest.raises(ModelFormatError, match="cut off"):
        await start_node(model_files=broken)
    node = Node(fake_config(), transport_factory=fake_transport, model_files=broken)
    await node.start(wait_ready=False)
    await node.wait_health(lambda health: "cut off" in health.detail)
    with pytest.raises(EngineLost, match="cut off"):
        node.model()
    await node.stop()


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    loading, loaded = threading.Event(), threading.Event()

    def load() -> FakeEngine:
        loading.set()
        loaded.wait()
        return FakeEngine()

    node = Node(
        fake_config(),
        transport_factory=lambda config: InProcessTransport("fake", load),
        model_files=fake_model_files,
    )
    starting = asyncio.create_task(node.start())
    await asyncio.to_thread(loading.wait)
    starting.cancel()
    loaded.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await node.stop()


def test_a_wrong_configuration_is_refused_before_anything_starts() -> None:
    config = NodeConfig(
        engines=fake_config().engines, scheduler=SchedulerConfig(policy="astrology")
    )
    with pytest.raises(ConfigError, match="astrology"):
        Node(config, transport_factory=fake_transport)


async def test_nothing_is_taken_after_a_stop(node: Node) -> None:
    await node.stop()
    with pytest.raises(Draining):
        node.session(TENANT)

    @inferlet()
    async def late(api: Api) -> None: ...

    with pytest.raises(Draining):
        node.launch(late, tenant=TENANT)


async def test_health_tells_the_truth_while_an_engine_process_is_gone(
    start_node: StartNode,
) -> None:
    transports: list[ZeroMQTransport] = []

    def process(config: EngineConfig) -> EngineTransport:
        command = (sys.executable, str(Path(__file__).with_name("engine_child.py")), "serve")
        transports.append(ZeroMQTransport(config, command=command))
        return transports[-1]

    node = await start_node(
        transport_factory=process, restart_limits=RestartLimits(first_pause_s=0.0)
    )
    assert await outcome(node, request()) == 5
    waiting = asyncio.create_task(node.wait_health(lambda health: not health.ready))
    await asyncio.sleep(0)
    os.kill(transports[0].pid, signal.SIGKILL)
    health = await waiting
    assert not health.alive
    assert health.engines[FAKE].state is EngineReadiness.RESTARTING
    assert "SIGKILL" in health.detail
    health = await node.wait_health(lambda health: health.ready)
    assert health.engines[FAKE].restarts == 1
    assert await outcome(node, request()) == 5


class FaultyEngine(FakeEngine):
    """Faults on every message that has work."""

    def execute(self, batch: Batch) -> BatchResult:
        if batch.forward is not None or batch.advance is not None:
            raise EngineFault("the fake memory is in doubt")
        return super().execute(batch)


async def test_a_crash_loop_fails_its_clients_and_later_ones(start_node: StartNode) -> None:
    node = await start_node(
        transport_factory=lambda config: InProcessTransport("fake", FaultyEngine),
        restart_limits=RestartLimits(max_losses=2, first_pause_s=0.0),
    )
    first = await outcome(node, request())
    assert isinstance(first, EngineLost)
    assert "in doubt" in first.message
    second = await outcome(node, request())
    assert isinstance(second, EngineLost)
    await node.wait_health(lambda health: health.engines[FAKE].state is EngineReadiness.FAILED)
    assert "2 times within" in node.health().detail
    with pytest.raises(EngineLost, match="cannot be served"):
        node.model()
    assert isinstance(await outcome(node, request()), EngineLost | ProgramTerminated)


async def test_the_loss_of_one_engine_leaves_the_others_alone(start_node: StartNode) -> None:
    def transport(config: EngineConfig) -> EngineTransport:
        faulty = config.name == "faulty"
        return InProcessTransport(config.name, FaultyEngine if faulty else FakeEngine)

    node = await start_node(
        fake_config("sound", "faulty"),
        transport_factory=transport,
        restart_limits=RestartLimits(max_losses=1),
    )
    long_call = asyncio.create_task(outcome(node, request(200, "sound")))
    assert isinstance(await outcome(node, request(model="faulty")), EngineLost)
    assert await long_call == 200
    assert not node.health().ready
    assert node.model("sound").id == "sound"


@pytest.mark.parametrize(
    ("imported", "spared"),
    [
        ("from quire.node import Node", "torch"),
        ("import quire.node.engines.engine_process", "quire.node.node"),
        ("import quire.node.encoders.encoder_process", "quire.node.node"),
        ("import quire.node.sandbox.sandbox_process", "quire.node.node"),
    ],
)
def test_what_a_process_does_not_need_is_not_imported(imported: str, spared: str) -> None:
    code = f"import sys; {imported}; sys.exit({spared!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_the_package_has_not_is_an_attribute_error() -> None:
    assert "Node" in quire.node.__all__
    with pytest.raises(AttributeError, match=r"'quire\.node' has no attribute 'Nodes'"):
        quire.node.Nodes  # type: ignore[attr-defined]  # noqa: B018


def test_the_shipped_model_is_found_by_its_name_and_by_none() -> None:
    path = resolve_source(None)
    assert path == resolve_source("quire-mini")
    assert (Path(path) / "config.json").is_file()
    assert resolve_source("./quire-mini") == "./quire-mini"
