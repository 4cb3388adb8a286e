"""Requests to a cluster in virtual time: times by hand, the same each time, and nothing left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from virtual_clusters import LINK, SPEC, examine, fleet, load, study

from quire.cluster.requests.request import COMPLETIONS, Request
from quire.cluster.routing.strategy import StrategySource, read_source
from quire.cluster.simulation import ClusterStudy, Lengths, RequestLoad, examine_cluster
from quire.cluster.simulation.figures import RequestOutcome, summarize_requests
from quire.cluster.simulation.generation import generate
from quire.cluster.simulation.virtual_fleet import VirtualFleet
from quire.core.errors import ConfigError, InvalidArgument, UnknownHandle
from quire.core.events import Event
from quire.programs.builtin import CompletionRequest, complete
from quire.simulation.exchange import LinkCost


def test_one_request_takes_what_its_messages_cost() -> None:
    """33 tokens of the prompt, with the first step in their message; then four steps."""
    [one] = examine(study(load()), "least_used").outcomes
    assert one.error is None
    assert one.ttft_s == pytest.approx(33 / 4 + 1)
    assert one.tpot_s == pytest.approx(1.0)
    assert one.jct_s == pytest.approx(33 / 4 + 5)


def test_the_way_to_a_node_takes_its_time() -> None:
    """There once, and back for each token: the last one is as late as the first."""
    [one] = examine(study(load(), call_s=0.5), "least_used").outcomes
    assert one.ttft_s == pytest.approx(33 / 4 + 1.5)
    assert one.tpot_s == pytest.approx(1.0)
    assert one.jct_s == pytest.approx(33 / 4 + 5.5)


def test_an_answer_that_ends_before_its_first_token_has_come_is_late_once() -> None:
    """Four steps of a second, and a way back of two hours."""
    [one] = examine(study(load(), call_s=4 * 3600.0), "least_used").outcomes
    assert one.ttft_s == pytest.approx(33 / 4 + 1 + 4 * 3600)
    assert one.tpot_s == pytest.approx(1.0)


def test_a_divided_request_is_sent_while_it_is_computed() -> None:
    """32 tokens take 8 s to compute and 8 s to send, of which three of four layers are hidden: the
    last takes 2 s. The receiver has one token and four steps left."""
    finding = examine(study(load()), "disaggregated")
    [one] = finding.outcomes
    assert one.engine == "node-1"
    assert one.ttft_s == pytest.approx(8 + 2 + 0.25 + 1)
    assert one.jct_s == pytest.approx(8 + 2 + 0.25 + 5)
    assert finding.summary.num_sent_bytes == 32 * SPEC.token_bytes


def test_the_balance_shifts_the_end_of_the_prompt() -> None:
    """A quarter of 64 tokens is computed by the receiver."""
    finding = examine(study(load(prompt=64)), "balanced", ratio=0.25)
    assert finding.summary.num_sent_bytes == 48 * SPEC.token_bytes
    [one] = finding.outcomes
    assert one.ttft_s == pytest.approx(12 + 3 + 4 + 1)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("data_parallel", {}),
        ("disaggregated", {}),
        ("balanced", {"ratio": -1.0}),
        ("cache_aware", {}),
        ("migrating", {}),
        ("quire", {}),
    ],
)
def test_the_same_study_gives_the_same_outcomes(strategy: str, options: dict[str, float]) -> None:
    requests = load(10, 0.1, prompt=20, num_prefixes=3, prefix_tokens=64)
    made = study(requests, call_s=0.01, link=LinkCost(bytes_per_s=1e4))
    first, second = (examine(made, strategy, **options) for _ in range(2))
    assert first.outcomes == second.outcomes
    assert first.summary.num_failed == 0
    assert first.summary.num_output_tokens == 50
    other = study(replace(requests, seed=1), call_s=0.01)
    assert examine(other, strategy, **options).outcomes != first.outcomes


def test_requests_with_one_beginning_find_it_where_the_router_sends_them() -> None:
    requests = load(24, 0.02, prompt=20, num_prefixes=3, prefix_tokens=64)
    aware = examine(study(requests), "cache_aware")
    homes = {(one.prefix, one.engine) for one in aware.outcomes}
    assert len(homes) == 3
    assert aware.summary.num_cached_tokens == (24 - 3) * 64
    turns = examine(study(requests), "data_parallel").summary
    assert turns.num_cached_tokens < aware.summary.num_cached_tokens
    assert turns.ttft_s.mean > aware.summary.ttft_s.mean


def test_a_receiver_without_room_computes_by_itself() -> None:
    """Half of six blocks may wait for K and V; two requests want two and three of them."""
    tight = replace(SPEC, kv_tokens=96)
    finding = examine(study(load(6, 10.0, prompt=40), engine=tight), "disaggregated")
    assert finding.summary.num_failed == 0
    assert 0 < finding.summary.num_sent_bytes < 6 * 39 * SPEC.token_bytes


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Of a strategy that leases and sends, and then sends its request elsewhere."""
    file = tmp_path / "wasteful.py"
    file.write_text(
        "async def route(request, engines):\n"
        "    first, second = engines[0], engines[-1]\n"
        "    if request.prompt is None:\n"
        "        return await first.send(request)\n"
        "    ready = await second.prep_recv(request, -1)\n"
        "    if request.request_id == 'request-1':\n"
        "        await first.remote_send(request, ready, begin=ready.matched_len, end=ready.end)\n"
        "    return await first.send(request)\n"
    )
    made = study(load(2, 0.01))
    world = VirtualFleet(2, SPEC, made.scheduler, LINK, 0.0, check=True)
    finding = examine_cluster(made, read_source(f"{file}:route"), check=True)
    assert [one.error for one in finding.outcomes] == [None, None]
    world.loop.run(_routed(world, file.read_text()))
    assert [one.virtual.controller.statistics().num_leases for one in world.engines] == [0, 0]
    assert [one.virtual.controller.statistics().num_programs for one in world.engines] == [0, 0]
    assert [one.load for one in world.engines] == [0, 0]
    assert not world.network.num_receiving


async def _routed(world: VirtualFleet, text: str) -> None:
    names: dict[str, object] = {}
    exec(text, names)
    request = _request(list(range(40)))
    answer = await names["route"](request, world.engines)  # type: ignore[operator]
    assert world.engines[1].virtual.controller.statistics().num_leases == 1
    while await answer.read():
        pass
    request.work.end()
    await asyncio.sleep(5)


def _request(prompt: list[int], max_tokens: int = 3) -> Request:
    body = msgspec.json.encode({"model": "light", "prompt": prompt, "max_tokens": max_tokens})
    return Request("POST", COMPLETIONS, [], body, "r")


def test_an_answer_that_is_closed_ends_its_work() -> None:
    world = fleet()
    engine = world.engines[0]

    async def work() -> float:
        answer = await engine.send(_request(list(range(40)), max_tokens=500))
        assert engine.load == 1
        answer.close()
        answer.close()
        assert engine.load == 0
        again = await engine.send(_request(list(range(40, 80))))
        while await again.read():
            pass
        again.close()
        return world.loop.time()

    assert world.loop.run(work()) < 60


def test_pages_are_located_and_priced() -> None:
    world = fleet()
    first, second = world.engines
    prompt = list(range(40))

    async def work() -> None:
        assert await first.locate(_request(prompt)) is None, "nobody has told anything yet"
        answer = await first.send(_request(prompt))
        while await answer.read():
            pass
        answer.close()
        world.look()
        located = await second.locate(_request(prompt))
        assert located is not None
        assert dict(located.num_matched) == {"node-0": 32}
        assert await first.pin(_request(prompt), price=1.0, ttl_s=10) == 32
        assert await second.pin(_request(prompt), price=1.0, ttl_s=10) == 0

    world.loop.run(work())


def test_calls_refuse_what_no_node_would_take() -> None:
    world = fleet()
    first, second = world.engines

    async def work() -> None:
        request = _request(list(range(40)))
        ready = await second.prep_recv(request, 32)
        with pytest.raises(InvalidArgument, match="lease is for 32 tokens"):
            await first.remote_send(request, ready, begin=0, end=33)
        with pytest.raises(InvalidArgument, match="outside the prompt of 40"):
            await second.prep_recv(request, 41)
        unknown = msgspec.structs.replace(ready, kv_addr_info="node-1/77")
        with pytest.raises(UnknownHandle, match="node-1/77"):
            await first.remote_send(request, unknown, begin=0, end=32)
        chat = Request("POST", "/v1/chat/completions", [], b"{}", "r")
        with pytest.raises(InvalidArgument, match="completions of token ids"):
            await first.send(chat)
        request.work.end()

    world.loop.run(work())


def test_a_lease_that_an_answer_has_taken_over_is_not_ended_with_the_request() -> None:
    world = fleet()
    first, second = world.engines

    async def work() -> None:
        request = _request(list(range(40)))
        ready = await second.prep_recv(request, 32)
        assert list(request.work.leases) == [ready.kv_addr_info]
        await first.remote_send(request, ready, begin=0, end=32)
        answer = await second.start_generate(request, 32, received=ready)
        assert not request.work.leases
        request.work.end(kept=answer)
        while await answer.read():
            pass

    world.loop.run(work())
    assert [one.virtual.controller.statistics().num_leases for one in world.engines] == [0, 0]


def test_a_lease_that_is_not_sent_in_time_is_over() -> None:
    world = fleet()
    first, second = world.engines

    async def work() -> None:
        slow = _request(list(range(400)))
        ready = await second.prep_recv(slow, -1)
        with pytest.raises(UnknownHandle, match="expired"):
            await first.remote_send(slow, ready, begin=0, end=399)
        assert world.loop.time() == pytest.approx(61, abs=1)

    world.loop.run(work())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise KeyError('k')", "KeyError: 'k'"),
        ("return 7", "returned 7"),
        ("import asyncio; await asyncio.to_thread(print)", "NotImplementedError"),
    ],
)
def test_what_a_strategy_does_wrong_fails_its_request(tmp_path: Path, body: str, told: str) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "async def route(request, engines):\n"
        "    if request.request_id == 'request-0':\n"
        f"        {body}\n"
        "    return await engines[0].send(request)\n"
    )
    finding = examine_cluster(study(load(2)), read_source(f"{file}:route"))
    first, second = finding.outcomes
    assert told in str(first.error)
    assert first.jct_s == first.tpot_s == first.ttft_s == inf
    assert second.error is None
    assert finding.summary.num_failed == 1


def test_an_unknown_strategy_is_refused_with_the_options() -> None:
    with pytest.raises(InvalidArgument, match="ratio"):
        examine_cluster(study(load()), StrategySource("balanced", options={"share": 1}))


@pytest.mark.parametrize("wrong", [{"num_nodes": 0}, {"call_s": -1.0}])
def test_figures_that_make_no_cluster_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        study(load(), **wrong)
    with pytest.raises(ConfigError, match="one each"):
        ClusterStudy(load(), engine=replace(SPEC, num_engines=2))


async def _consumed(world: VirtualFleet, prompt: list[int]) -> int:
    engine = world.engines[0].virtual
    api = engine.api()
    asked = CompletionRequest(model=engine.model_id, prompt=tuple(prompt), max_tokens=5)
    num_tokens = sum([len(one.token_ids) async for one in complete(api, asked)])
    api.close()
    return num_tokens


def test_an_answer_has_the_commands_of_a_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []
    ended_s = []
    prompt = list(range(40))

    async def generated(world: VirtualFleet) -> int:
        generation = await generate(world.engines[0].virtual, prompt, 5, None)
        await generation.whole()
        return generation.num_tokens

    for work in (generated, lambda world: _consumed(world, prompt)):
        world = fleet(1)
        calls: list[str] = []
        controller = world.engines[0].virtual.controller
        handle = controller.handle

        def noted(event: Event, calls: list[str] = calls, handle=handle):  # type: ignore[no-untyped-def]
            call = getattr(event, "call", None)
            calls.append(type(call or event).__name__)
            calls += [type(one).__name__ for one in getattr(call, "commands", ())]
            return handle(event)

        monkeypatch.setattr(controller, "handle", noted, raising=False)
        assert world.loop.run(work(world)) == 5
        told.append([one for one in calls if one not in ("BatchCompleted", "Tick")])
        ended_s.append(world.loop.time())
    assert told[0][:5] == told[1][:5]
    assert "Decode" in told[0]
    assert ended_s[0] == ended_s[1]


def test_requests_are_the_same_at_any_rate() -> None:
    slow, fast = (
        RequestLoad(50, rate, Lengths(30, 4), Lengths(9, 2), 4, 16, seed=3).drawn()
        for rate in (1.0, 10.0)
    )
    assert [one.prompt for one in slow] == [one.prompt for one in fast]
    assert [one.at_s for one in slow] == pytest.approx([10 * one.at_s for one in fast])
    for one in slow:
        assert one.prefix is not None
        assert one.prompt[:16] == list(range(16 * one.prefix, 16 * one.prefix + 16))
    own = [token for one in slow for token in one.prompt[16:]]
    assert len(set(own)) == len(own), "what stands behind a prefix is nobody else's"
    assert min(own) >= 4 * 16


def test_lengths_and_prefixes_have_their_distributions() -> None:
    plans = RequestLoad(
        4000, 1.0, Lengths(200, 1.0, "lognormal"), Lengths(100, 5), 3, 8, zipf=1.0
    ).drawn()
    own = [len(one.prompt) - 8 for one in plans]
    assert sum(own) / len(own) == pytest.approx(200, rel=0.1)
    assert max(own) > 1000
    outputs = [one.num_output for one in plans]
    assert sum(outputs) / len(outputs) == pytest.approx(100, abs=0.5)
    assert min(outputs) > 70
    shares = [sum(one.prefix == number for one in plans) / len(plans) for number in range(3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"num_requests": 0}, "num_requests is 0"),
        ({"rate": 0.0}, "rate"),
        ({"num_prefixes": 2}, "prefixes of 0 tokens"),
        ({"zipf": -1.0}, "exponent"),
    ],
)
def test_figures_that_make_no_load_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        replace(load(), **wrong)


@pytest.mark.parametrize(
    "wrong", [(0, 0.0, "normal"), (5, -1.0, "normal"), (5, 1.0, "uniform"), (1, 1.0, "lognormal")]
)
def test_figures_that_make_no_lengths_are_refused(wrong: tuple[int, float, str]) -> None:
    with pytest.raises(ConfigError):
        Lengths(*wrong)


def test_a_strategy_that_moves_answers_fails_its_request(tmp_path: Path) -> None:
    """Figures without the move would be those of another strategy."""
    file = tmp_path / "moving.py"
    file.write_text(
        "async def route(request, engines):\n"
        "    answer = await engines[0].send(request)\n"
        "    if len(engines) > 1:\n"
        "        await engines[0].move(answer, to=engines[1])\n"
        "    return answer\n"
    )
    (outcome,) = examine_cluster(study(load()), read_source(f"{file}:route")).outcomes
    assert "do not move in a simulation" in str(outcome.error)


@pytest.mark.parametrize("num_prompt", range(9, 13))
def test_answers_may_end_anywhere_in_a_page(num_prompt: int) -> None:
    """What a decode needs is counted to the slot: prompt and answer end before, at and behind the
    end of a page of 16."""
    requests = RequestLoad(1, 1.0, Lengths(num_prompt), Lengths(8))
    for strategy in ("data_parallel", "disaggregated"):
        (outcome,) = examine(study(requests), strategy).outcomes
        assert outcome.error is None
        assert outcome.tpot_s == pytest.approx(1.0), "each of its tokens takes a step"


def test_a_summary_is_of_what_was_answered() -> None:
    made = [
        RequestOutcome(0, 1.0, 2.0, 6.0, 3, 5, None, "a"),
        RequestOutcome(1, 1.0, 3.0, 9.0, 3, 4, None, "a"),
        RequestOutcome(2, 2.0, inf, inf, 3, 7, None, None, error="lost"),
    ]
    summary = summarize_requests(made, 6, 2, 99)
    assert (summary.num_requests, summary.num_failed, summary.num_output_tokens) == (3, 1, 9)
    assert (summary.num_prefilled_tokens, summary.num_cached_tokens) == (6, 2)
    assert (summary.num_sent_bytes, summary.most_share, summary.makespan_s) == (99, 1.0, 9.0)
    assert [one.tpot_s for one in made] == [1.0, 2.0, inf]
    assert [one.jct_s for one in made] == [5.0, 8.0, inf]
    assert summarize_requests(made[2:], 0, 0, 0).makespan_s == 0.0
