"""Programs on a ``LocalNode``: deterministic, exact, cleaned up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult
from quire.core.decoding import StopSpec
from quire.core.errors import ProgramFailed, ProgramTerminated
from quire.core.ids import EngineId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.core.quotas import Quotas
from quire.core.scheduler_config import SchedulerConfig
from quire.programs.api import Api
from quire.programs.sdk import inferlet
from quire.testing import (
    FakeEngine,
    FakeTokenizer,
    LocalNode,
    ProtocolViolation,
    ScriptedModel,
    answers,
    expected_tokens,
)
from quire.testing.conformance import ProgramPortSuite


class TestLocalPort(ProgramPortSuite):
    def open_port(self, sink: ReplySink) -> AbstractAsyncContextManager[ProgramPort]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[ProgramPort]:
            async with LocalNode() as node:
                yield node.connect("port")(sink, asyncio.get_running_loop())

        return opened()


TOKENIZER = FakeTokenizer()
STOP = StopSpec(max_tokens=6)
ONE_STEP = SchedulerConfig(max_steps_per_message=1)


async def complete(api: Api, text: str) -> list[int]:
    """A completion through the trait functions."""
    pages = api.alloc_kvpage(8)
    return (await api.decode([], TOKENIZER.encode(text), pages, stop=STOP)).token_ids


async def test_runs_a_program() -> None:
    async with LocalNode() as node:
        assert await node.run(complete, "hello") == expected_tokens(b"hello", STOP)


@inferlet(topics=["news"], stores=["notes"], hosts=["example.org"])
async def reaches(api: Api, what: str) -> str:
    """Uses what its manifest names, or what it does not."""
    if what == "topic":
        await api.broadcast("other", "text")
    elif what == "store":
        await api.store_put("key", 1, store="other")
    elif what == "host":
        await api.http_get("http://elsewhere.invalid/")
    else:
        await api.broadcast("news", "text")
        await api.store_put("key", 1, store="notes")
    return "done"


@pytest.mark.parametrize("what", ["topic", "store", "host"])
async def test_a_program_keeps_to_its_manifest(what: str) -> None:
    async with LocalNode() as node:
        assert await node.run(reaches, "what it names") == "done"
        with pytest.raises(ProgramFailed) as refused:
            await node.run(reaches, what)
        assert refused.value.details["code"] == "forbidden"


async def test_a_program_has_the_quotas_that_it_asks_for() -> None:
    @inferlet(quotas=Quotas(max_pages=2))
    async def wants(api: Api) -> None:
        api.alloc_kvpage(3)
        await api.synchronize()

    async with LocalNode() as node:
        with pytest.raises(ProgramFailed) as refused:
            await node.run(wants)
        assert refused.value.details["code"] in ("quota_exceeded", "never_within_quota")


async def test_a_plain_function_has_no_manifest_to_keep_to() -> None:
    async with LocalNode() as node:
        assert await node.run(reaches.main, "what it names") == "done"
        assert await node.run(reaches.main, "topic") == "done"


async def test_programs_share_the_engine() -> None:
    texts = [f"prompt number {i}" for i in range(5)]
    async with LocalNode() as node:
        results = await asyncio.gather(*(node.run(complete, text) for text in texts))
        num_messages = len(node.harness.dispatched)
    assert results == [expected_tokens(text.encode(), STOP) for text in texts]
    assert num_messages < 5 * STOP.max_tokens


async def test_a_run_is_repeatable() -> None:
    async def run() -> tuple[float, int]:
        async with LocalNode() as node:
            await asyncio.gather(*(node.run(complete, text) for text in ("a", "bc", "def")))
            return node.harness.now_s, len(node.harness.dispatched)

    assert await run() == await run()


async def test_holding_the_engine() -> None:
    issued = asyncio.Event()

    async def wait(api: Api) -> int:
        stream = api.decode([], TOKENIZER.encode("hello"), api.alloc_kvpage(8), stop=STOP)
        await asyncio.sleep(0)
        issued.set()
        return len((await stream).token_ids)

    async with LocalNode() as node:
        node.hold = True
        running = node.launch(wait)
        await issued.wait()
        await node.idle()
        assert node.harness.num_in_flight(EngineId("fake")) > 0
        assert not running.state.ended
        node.hold = False
        assert await running.result() == 6


async def test_scripted_answers() -> None:
    script = ScriptedModel(answers(["yes"]), TOKENIZER)

    async def ask(api: Api) -> str:
        stop = StopSpec(max_tokens=9, token_ids=TOKENIZER.eos_token_ids)
        decoded = await api.decode([], TOKENIZER.encode("?"), api.alloc_kvpage(8), stop=stop)
        return TOKENIZER.decode(decoded.token_ids, skip_special=True)

    async with LocalNode({EngineId("fake"): FakeEngine(script=script)}) as node:
        assert await node.run(ask) == "yes"


async def test_a_failing_program_fails_alone() -> None:
    async def broken(api: Api) -> None:
        api.alloc_kvpage(4)
        raise ZeroDivisionError

    async with LocalNode() as node:
        with pytest.raises(ProgramFailed, match="ZeroDivisionError"):
            await node.run(broken)
        assert await node.run(complete, "hello") == expected_tokens(b"hello", STOP)
        await node.idle()
        (engine,) = node.controller.statistics().engines
        assert engine.pool.num_held == 0


class Picky(FakeEngine):
    """Fails on every message."""

    def execute(self, batch: Batch) -> BatchResult:
        raise ProtocolViolation("not in this tone")


async def test_a_broken_contract_is_raised_by_the_node() -> None:
    node = LocalNode({EngineId("fake"): Picky()})
    await node.__aenter__()
    with pytest.raises(ProgramTerminated, match="the node has failed"):
        await node.run(complete, "hello")
    with pytest.raises(ProtocolViolation, match="not in this tone"):
        await node.__aexit__(None, None, None)


async def test_a_crash_is_an_error_of_the_program() -> None:
    engine = FakeEngine()
    engine.crash_at(2)
    async with LocalNode({EngineId("fake"): engine}, config=ONE_STEP) as node:
        with pytest.raises(ProgramFailed, match="EngineLost"):
            await node.run(complete, "hello")
