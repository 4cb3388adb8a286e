"""Both transports against the fake engine: same results, loading errors, loss, clean ends."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_child import TalkingEngine

from quire.core.batch import Batch, DistRows, EmbedRows, ForwardRows, no_i32
from quire.core.batch_result import BatchResult
from quire.core.config import EngineConfig
from quire.core.errors import EngineFault, EngineLost, ModelFormatError, ProtocolMismatch
from quire.core.exchange import SendEnded
from quire.core.ids import ModelId
from quire.core.interfaces import EngineTransport
from quire.node.transports import InProcessTransport, ZeroMQTransport
from quire.node.transports.child import LifeLimits
from quire.testing import FakeEngine, fake_pool

CHILD = Path(__file__).parents[1] / "engine_child.py"
CONFIG = EngineConfig(source="fake", name=ModelId("fake"), page_size=4)


def in_process() -> InProcessTransport:
    return InProcessTransport("fake", lambda: FakeEngine(fake_pool(page_size=4)))


def process(
    mode: str = "serve",
    on_progress: Callable[[str, float], None] | None = None,
    limits: LifeLimits | None = None,
) -> ZeroMQTransport:
    command = (sys.executable, str(CHILD), mode)
    return ZeroMQTransport(CONFIG, on_progress, limits, command)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def prefill(step: int, *tokens: int) -> Batch:
    """Run ``tokens`` without keeping them; the distribution after the last one."""
    n = len(tokens)
    return Batch(
        serial=step,
        embeds=EmbedRows(tokens=i32(*tokens), embeds=i32(*range(n))),
        forward=ForwardRows(
            row_starts=i32(0, n),
            tables=i32(-1),
            sequences=i32(-1),
            tokens=i32(*[0] * n),
            embeds=i32(*range(n)),
            positions=np.arange(n, dtype=np.int32)[None],
            slots=np.full((1, n), -1, np.int32),
            outputs=i32(*[-1] * (n - 1), 9),
            score_targets=no_i32(),
        ),
        dists=DistRows(embeds=i32(9), top_k=i32(5)),
    )


class Listener:
    """Collects what a transport calls back."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[Any] = asyncio.Queue()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, transport: EngineTransport) -> None:
        self.info = await transport.start(self.results.put_nowait, self.lost.set_result)


@pytest.fixture(params=[in_process, process], ids=["in_process", "zeromq"])
def transport(request: pytest.FixtureRequest) -> EngineTransport:
    made: EngineTransport = request.param()
    return made


async def test_batches_are_executed_in_order_as_by_the_engine_itself(
    transport: EngineTransport,
) -> None:
    reference = FakeEngine(fake_pool(page_size=4))
    batches = [prefill(1, 3, 4, 5), prefill(2, 6), prefill(3, 3, 4)]
    listener = Listener()
    await listener.start(transport)
    try:
        assert listener.info.pool == reference.info.pool
        for batch in batches:
            transport.send(batch)
        for batch in batches:
            result, expected = await listener.results.get(), reference.execute(batch)
            assert result.serial == batch.serial
            np.testing.assert_array_equal(result.dist_ids, expected.dist_ids)
            np.testing.assert_array_equal(result.dist_probs, expected.dist_probs)
    finally:
        await transport.close()
        await transport.close()
    assert not listener.lost.done()


@pytest.mark.parametrize("where", ["in_process", "zeromq"])
async def test_an_engine_speaks_without_being_asked(where: str) -> None:
    talking = InProcessTransport("fake", lambda: TalkingEngine(fake_pool(page_size=4)))
    transport = talking if where == "in_process" else process("talk")
    listener = Listener()
    await listener.start(transport)
    try:
        assert await listener.results.get() == SendEnded(send=7, num_bytes=3)
        transport.send(prefill(1, 3))
        assert (await listener.results.get()).serial == 1
    finally:
        await transport.close()
    assert not listener.lost.done()


async def test_closing_before_the_start_leaves_nothing(transport: EngineTransport) -> None:
    await transport.close()


async def test_closing_while_it_loads_ends_it(transport: EngineTransport) -> None:
    listener = Listener()
    starting = asyncio.create_task(listener.start(transport))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    await transport.close()
    assert starting.cancelled()


async def test_a_load_error_is_the_engines_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    transport = process("broken")
    with pytest.raises(ModelFormatError, match="truncated"):
        await Listener().start(transport)
    await transport.close()
    assert "a library prints" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_load_error_that_nobody_foresaw_names_the_source_and_a_remedy() -> None:
    """Such a process must not be started again and again, with its reason in the log alone."""
    transport = process("unforeseen")
    with pytest.raises(ModelFormatError, match=r"loaded \(KeyError: 'embeddings'\).*again"):
        await Listener().start(transport)
    await transport.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process by its pidfd")
async def test_a_process_that_cannot_load_waits_until_its_node_has_read_why() -> None:
    """One that ended by itself might be gone before its last word is read."""
    transport = process("broken")
    with pytest.raises(ModelFormatError, match="truncated"):
        await Listener().start(transport)
    ended = os.pidfd_open(transport.pid)
    assert not select.select([ended], [], [], 0.5)[0]
    await transport.close()
    assert select.select([ended], [], [], 0)[0]
    os.close(ended)


async def test_the_reason_of_a_process_that_has_to_be_killed_is_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a loaded machine the end of a process takes longer than its grace; that is no news."""
    transport = process("stubborn", limits=LifeLimits(grace_s=0.01))
    with pytest.raises(ModelFormatError, match="truncated"):
        await Listener().start(transport)
    await transport.close()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_progress_is_reported() -> None:
    seen: list[tuple[str, float]] = []
    transport = process("serve", lambda stage, fraction: seen.append((stage, fraction)))
    await Listener().start(transport)
    await transport.close()
    assert seen == [("weights", 0.5)]


async def test_another_protocol_version_is_refused() -> None:
    transport = process("old")
    with pytest.raises(ProtocolMismatch, match="version 0"):
        await Listener().start(transport)
    await transport.close()


async def test_a_killed_process_is_lost_once_and_can_still_be_sent_to() -> None:
    transport, listener = process(), Listener()
    await listener.start(transport)
    os.kill(transport.pid, signal.SIGKILL)
    assert "SIGKILL" in await listener.lost
    transport.send(prefill(1, 1))
    await transport.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [("exit 3", ""), ("echo out of luck >&2; exit 3", "; its last words:\nout of luck")],
)
async def test_the_last_words_of_a_process_are_logged_if_there_are_any(
    script: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = ZeroMQTransport(CONFIG, command=("/bin/sh", "-c", f"read order; {script}"))
    with pytest.raises(EngineLost, match="exited with 3") as raised:
        await Listener().start(transport)
    await transport.close()
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    reason = raised.value.message.removeprefix("engine fake is lost: ")
    assert logged == [f"{reason}{words}"]


async def test_sigterm_ends_the_process_with_status_0() -> None:
    transport, listener = process(), Listener()
    await listener.start(transport)
    os.kill(transport.pid, signal.SIGTERM)
    assert "exited with 0" in await listener.lost
    await transport.close()


async def test_a_fault_is_told_before_the_process_ends() -> None:
    transport, listener = process("crash"), Listener()
    await listener.start(transport)
    transport.send(prefill(1, 1))
    transport.send(prefill(2, 1))
    assert "told to crash" in await listener.lost
    assert listener.results.qsize() == 1
    await transport.close()


async def test_a_process_that_answers_no_heartbeat_is_killed() -> None:
    limits = LifeLimits(heartbeat_s=0.01, loading_s=0.05)
    transport = process("mute", limits=limits)
    with pytest.raises(EngineLost, match="no heartbeat"):
        await Listener().start(transport)
    await transport.close()


async def test_a_loaded_process_that_stops_is_killed_long_before_one_that_loads() -> None:
    limits = LifeLimits(heartbeat_s=0.01, frozen_after_s=0.05, loading_s=600)
    transport, listener = process("work", limits=limits), Listener()
    await listener.start(transport)
    os.kill(transport.pid, signal.SIGSTOP)
    assert "no heartbeat for 0.05 s" in await listener.lost
    await transport.close()


async def test_an_in_process_fault_is_a_loss() -> None:
    class Broken(FakeEngine):
        def execute(self, batch: Batch) -> BatchResult:
            raise EngineFault("memory is in doubt")

    transport, listener = InProcessTransport("fake", Broken), Listener()
    await listener.start(transport)
    transport.send(prefill(1, 1))
    assert "memory is in doubt" in await listener.lost
    await transport.close()


async def test_an_in_process_load_error_is_starts_own() -> None:
    def load() -> FakeEngine:
        raise ModelFormatError("no tensor")

    transport = InProcessTransport("fake", load)
    with pytest.raises(ModelFormatError, match="no tensor"):
        await Listener().start(transport)
    await transport.close()
