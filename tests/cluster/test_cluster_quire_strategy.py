"""The strategy ``quire``: which of going to the pages, bringing them and computing them costs
least."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from router_world import until

from quire.cluster.engines.interfaces import LocatedPrompt, PrepRecvResult, RemoteSendResult
from quire.cluster.engines.trial import TrialEngine
from quire.cluster.nodes.page_tree import PageChange, PageTree
from quire.cluster.requests.request import Request
from quire.cluster.simulation.virtual_engine import VirtualEngine
from quire.cluster.simulation.virtual_fleet import VirtualFleet
from quire.cluster.strategies import Quire
from quire.cluster.strategies.quire import Plan
from quire.core.errors import InvalidArgument, PoolExhausted
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import EngineSpec
from quire.simulation.exchange import LinkCost
from quire.simulation.step_cost import StepCost

SIZE, NUM_PAGES = 16, 100
KEYS = range(1, NUM_PAGES + 1)
NUM_TOKENS = SIZE * NUM_PAGES + 5


class FakeEngine(TrialEngine):
    """``moves``: what it was asked to receive and send."""

    token_bytes = 1000
    prompt_token_s: float | None = 1e-3
    error: Exception | None = None
    sends_bytes = 2 << 20
    waits_s = 0.0

    def __init__(self, name: str, load: int = 0) -> None:
        super().__init__(name)
        self.load = load
        self.moves: list[tuple[str, int, int]] = []

    async def prep_recv(self, request: Request, end: int, **_: object) -> PrepRecvResult:
        self.moves.append(("receives", 0, end))
        return PrepRecvResult("lease", 0, num_tokens=end, end=end, call_s=self.waits_s)

    async def remote_send(
        self, request: Request, received: PrepRecvResult, *, begin: int, end: int, **_: object
    ) -> RemoteSendResult:
        if self.error is not None:
            raise self.error
        self.moves.append(("sends", begin, end))
        call_s = 0.5 + self.waits_s if self.waits_s else 0.0
        return RemoteSendResult(
            end - begin, num_bytes=self.sends_bytes, elapsed_s=0.5, call_s=call_s
        )


def located(pages: Mapping[str, int], num_tokens: int = NUM_TOKENS) -> LocatedPrompt:
    """A prompt of which engines have so many pages, by name."""
    tree = PageTree()
    for name, num in pages.items():
        tree.apply(name, PageChange("e", 0, None, 0, KEYS[:num], ()))
    keys = KEYS[: num_tokens // SIZE]
    return LocatedPrompt([7] * num_tokens, keys, SIZE, tree.matched(keys, SIZE))


def request() -> Request:
    body = {"prompt": [7] * NUM_TOKENS, "max_tokens": 2}
    return Request("POST", "/v1/completions", [], msgspec.json.encode(body), "r")


def completion(prompt: list[int]) -> Request:
    body = {"model": "light", "prompt": prompt, "max_tokens": 2}
    return Request("POST", "/v1/completions", [], msgspec.json.encode(body), "r")


def shown(plan: Plan) -> tuple[str, str | None, int]:
    return plan.engine.name, plan.source.name if plan.source else None, plan.num_computed


@pytest.mark.parametrize(
    ("loads", "pages", "expected"),
    [
        ((0, 0, 0), {"b": 90}, ("b", None, NUM_TOKENS - 90 * SIZE)),  # to the pages
        ((0, 5, 3), {"b": 90}, ("a", "b", NUM_TOKENS - 90 * SIZE)),  # they are brought
        ((0, 5, 3), {"b": 1}, ("a", None, NUM_TOKENS)),  # too few to be brought
        ((2, 1, 0), {}, ("c", None, NUM_TOKENS)),
        ((9, 9, 9), {"a": 100, "b": 90}, ("a", None, 5)),
        ((0, 90, 0), {"b": 100, "a": 50}, ("a", "b", 5)),  # the missing pages alone
        ((0, 0, 0), {"gone": 100, "b": 10}, ("b", None, NUM_TOKENS - 10 * SIZE)),
    ],
)
def test_the_cheapest_is_chosen(
    loads: tuple[int, ...], pages: dict[str, int], expected: tuple[str, str | None, int]
) -> None:
    engines = [FakeEngine(name, load) for name, load in zip("abc", loads, strict=True)]
    strategy = Quire(bytes_per_s=1e8, call_s=0.05)
    assert shown(strategy.plan(located(pages), engines)) == expected


def test_slow_networks_and_fast_engines_compute_again() -> None:
    engines = [FakeEngine("a"), FakeEngine("b", load=50)]
    there = located({"b": 90})
    assert shown(Quire(bytes_per_s=1e8).plan(there, engines))[1] == "b"
    assert shown(Quire(bytes_per_s=1e5).plan(there, engines))[1] is None
    assert shown(Quire(call_s=9.0).plan(there, engines))[1] is None
    engines[0].prompt_token_s = 1e-7
    assert shown(Quire(bytes_per_s=1e8).plan(there, engines))[1] is None
    engines[0].prompt_token_s = 1e-3
    engines[1].token_bytes = 0  # it has not told
    assert shown(Quire(bytes_per_s=1e8).plan(there, engines))[1] is None


def test_a_prompt_that_is_there_whole_computes_its_last_token() -> None:
    plan = Quire().plan(located({"a": 100}, NUM_PAGES * SIZE), [FakeEngine("a"), FakeEngine("b")])
    assert shown(plan) == ("a", None, 1)


def test_of_equals_the_sessions_home_is_taken() -> None:
    engines = [FakeEngine("a"), FakeEngine("b"), FakeEngine("c")]
    assert Quire().plan(located({}), engines, home="c").engine.name == "c"


async def test_pages_are_brought_and_the_speed_is_learnt() -> None:
    strategy, engines = Quire(bytes_per_s=1e9), [FakeEngine("a"), FakeEngine("b", load=50)]
    engines[0].located = engines[1].located = located({"b": 90})
    answer = await strategy(request(), engines)
    assert answer.engine == "a"
    assert engines[0].moves == [("receives", 0, 90 * SIZE)]
    assert engines[1].moves == [("sends", 0, 90 * SIZE)]
    assert strategy.bytes_per_s == pytest.approx(0.8e9 + 0.2 * (4 << 20))
    engines[1].sends_bytes = 100
    await strategy(request(), engines)
    assert strategy.bytes_per_s == pytest.approx(0.8e9 + 0.2 * (4 << 20)), "too little to tell"
    assert not any(strategy.owed.values())
    assert strategy.computing.matched(KEYS) == {}


async def test_the_time_of_calls_is_learnt_and_forgotten() -> None:
    """A wait of both engines for the message before is part of it; the bytes are not."""
    strategy, engines = Quire(call_s=0.01), [FakeEngine("a"), FakeEngine("b", load=50)]
    engines[0].located = engines[1].located = located({"b": 90})
    engines[0].waits_s, engines[1].waits_s = 2.0, 3.0
    await strategy(request(), engines)
    assert strategy.call_s == pytest.approx(0.8 * 0.01 + 0.2 * 5.0)
    while shown(strategy.plan(engines[0].located, engines))[1] is not None:
        await strategy(request(), engines)
    learnt = strategy.call_s
    assert 2.0 < learnt < 5.0
    await strategy(request(), engines)  # nothing is brought any more
    assert strategy.call_s == pytest.approx(0.99 * learnt + 0.01 * 0.01)


async def test_what_cannot_be_brought_is_computed() -> None:
    engines = [FakeEngine("a"), FakeEngine("b", load=50)]
    engines[0].located = engines[1].located = located({"b": 90})
    engines[1].error = PoolExhausted("no room to send from")
    assert (await Quire()(request(), engines)).engine == "a"


def test_an_engine_that_is_busy_sends_its_pages_all_the_same() -> None:
    """What is brought from it is whole pages that it has: it computes nothing for that, and so they
    do not wait behind its prompts."""
    cost = StepCost(message_s=0, step_s=1.0, row_s=0, prompt_token_s=0.25)
    spec = EngineSpec(
        max_sequences=4,
        kv_tokens=4096,
        max_batch_tokens=64,
        cost=cost,
        page_size=16,
        num_layers=4,
        token_bytes=40,
    )
    world = VirtualFleet(2, spec, SchedulerConfig(), LinkCost(bytes_per_s=1600.0), 0.0, check=True)
    source, idle = world.engines
    popular = list(range(64))

    async def answered(engine: VirtualEngine, prompt: list[int]) -> None:
        answer = await engine.send(completion(prompt))
        while await answer.read():
            pass
        answer.close()

    async def work() -> None:
        await answered(source, [*popular, 1])
        await answered(idle, list(range(200, 265)))  # both have measured a prompt
        world.look()
        world.probe()
        busy = asyncio.create_task(answered(source, list(range(300, 1300))))
        await asyncio.sleep(3)
        strategy, asked = Quire(bytes_per_s=1600.0, call_s=0.0), completion([*popular, 2])
        began_s = world.loop.time()
        answer = await strategy(asked, world.engines)
        assert answer.engine == idle.name
        assert world.network.num_bytes == len(popular) * spec.token_bytes
        answered_s = world.loop.time() - began_s
        assert not busy.done()
        assert not strategy.call_s, "the sender reports with the end of its message"
        while await answer.read():
            pass
        answer.close()
        asked.work.end()
        await busy
        await asyncio.sleep(1)
        assert 0 < strategy.call_s < answered_s, "the wait is not learnt"

    world.loop.run(work())
    figures = source.virtual.figures
    assert figures.num_prefilled_tokens == len(popular) + 1 + 1000


async def test_requests_that_come_together_share_what_the_first_computes() -> None:
    strategy, opened, sent = Quire(), asyncio.Event(), []

    class Slow(FakeEngine):
        async def send(self, request: Request) -> object:  # type: ignore[override]
            sent.append(self.name)
            await opened.wait()
            return await super().send(request)

    engines = [Slow("a"), Slow("b")]
    for engine in engines:
        engine.located = located({})
    tasks = [asyncio.create_task(strategy(request(), engines)) for _ in range(3)]
    await until(lambda: len(sent) == 3)
    assert sent == ["a", "a", "a"]
    opened.set()
    await asyncio.gather(*tasks)


async def test_without_indexes_the_one_that_owes_least_is_asked() -> None:
    engines = [FakeEngine("a", load=3), FakeEngine("b", load=1)]
    assert (await Quire()(request(), engines)).engine == "b"


def test_a_profile_tells_what_no_engine_has_measured(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"cost": {"prompt_token_s": 0.5, "step_s": 1.0}, "model": "m"}))
    engine = FakeEngine("a")
    engine.prompt_token_s = None
    plan = Quire(profile=str(file)).plan(located({}), [engine])
    assert plan.cost_s == pytest.approx(2 * 0.5 * NUM_TOKENS)
    for text in ("{}", "no JSON", '{"cost": {}}'):
        file.write_text(text)
        with pytest.raises(InvalidArgument, match="quire profile"):
            Quire(profile=str(file))
    with pytest.raises(InvalidArgument, match="bytes_per_s"):
        Quire(bytes_per_s=0.0)


@pytest.mark.parametrize(
    ("loads", "pages", "expected"),
    [
        ((0, 0, 0), {"b": 90}, None),  # nobody waits
        ((0, 9, 3), {"b": 90}, ("a", "b", NUM_TOKENS - 90 * SIZE)),
        ((0, 9, 3), {"a": 90, "b": 90}, None),  # they are there
        ((0, 9, 3), {"a": 10, "b": 90}, ("a", "b", NUM_TOKENS - 90 * SIZE)),
        ((9, 9, 9), {"b": 90}, None),
        ((0, 9, 3), {}, None),
    ],
)
def test_pages_are_brought_ahead_where_it_pays(
    loads: tuple[int, ...], pages: dict[str, int], expected: tuple[str, str, int] | None
) -> None:
    engines = [FakeEngine(name, load) for name, load in zip("abc", loads, strict=True)]
    plan = Quire(bytes_per_s=1e9).plan_ahead(located(pages), engines)
    assert (None if plan is None else shown(plan)) == expected


def test_pages_stay_where_bringing_takes_longer_than_waiting() -> None:
    engines = [FakeEngine("a"), FakeEngine("b", 9)]  # 9 x 64 tokens of 1 ms
    for bytes_per_s, is_brought in ((3e6, True), (2e6, False)):  # 1440 tokens of 1000 bytes
        plan = Quire(bytes_per_s=bytes_per_s, call_s=0.0).plan_ahead(located({"b": 90}), engines)
        assert (plan is not None) is is_brought
