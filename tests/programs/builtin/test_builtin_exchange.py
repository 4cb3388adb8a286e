"""``prepare_receive``, ``remote_send`` and a completion behind them, on two nodes of one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import pytest

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult
from quire.core.errors import InvalidArgument, QuireError
from quire.core.exchange import SendTarget
from quire.core.ids import EngineId, ModelId
from quire.core.lease_commands import Leased, LeaseName
from quire.programs.api import Api, connect_api
from quire.programs.builtin import ChoiceChunk, CompletionRequest, complete
from quire.programs.builtin.exchange import (
    LeaseRequest,
    PrepareRequest,
    SendRequest,
    change_lease,
    prepare_receive,
    remote_send,
)
from quire.testing import FakeEngine, LocalNode, fake_pool
from quire.testing.fake_engine.network import FakeNetwork

R, T = TypeVar("R"), TypeVar("T")

MODEL, KEY = ModelId("fake"), b"k" * 16
PROMPT = tuple(i % 200 + 10 for i in range(1115))
"""Three pieces, of which the last page is filled in part."""


class CountingEngine(FakeEngine):
    """``num_computed``: tokens of prompts so far."""

    num_computed = 0

    def execute(self, batch: Batch) -> BatchResult:
        if batch.forward is not None:
            self.num_computed += len(batch.forward.tokens)
        return super().execute(batch)


def node(network: FakeNetwork) -> LocalNode:
    pool = fake_pool(page_size=4, num_blocks=700)
    return LocalNode({EngineId("fake"): FakeEngine(pool, network=network, max_model_len=2000)})


async def results(
    place: LocalNode, program: Callable[[Api, R], AsyncGenerator[T, None]], asked: R
) -> list[T]:
    api = connect_api(place.connect("call", form="session"))
    try:
        async with aclosing(program(api, asked)) as items:
            return [item async for item in items]
    finally:
        api.close()


def request(prompt: tuple[int, ...] = PROMPT, max_tokens: int = 12) -> CompletionRequest:
    return CompletionRequest(prompt, max_tokens, ignore_eos=True)


def tokens(chunks: list[ChoiceChunk], index: int = 0) -> list[int]:
    return [token for one in chunks if one.index == index for token in one.token_ids]


async def leased(place: LocalNode, prompt: tuple[int, ...]) -> Leased:
    (found,) = await results(
        place, prepare_receive, PrepareRequest(MODEL, prompt, len(prompt), KEY, 60.0)
    )
    return found


def send(lease: Leased, prompt: tuple[int, ...], begin: int = 0) -> SendRequest:
    target = SendTarget(
        address=lease.address, lease=lease.lease.number, key=lease.lease.key, first=0
    )
    return SendRequest(
        MODEL, prompt, begin, lease.num_tokens, lease.num_matched, target, lease.content
    )


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("end", [1114, 1112, 3])
def test_a_prompt_is_computed_on_one_node_and_answered_on_another(
    end: int, num_choices: int
) -> None:
    async def main() -> None:
        network = FakeNetwork(seed=end)
        async with node(network) as sender, node(network) as receiver, node(network) as other:
            lease = await leased(receiver, PROMPT[:end])
            (sent,) = await results(sender, remote_send, send(lease, PROMPT))
            assert sent.transport == "in_process", "of all pieces, the name once"
            assert sent.num_tokens == end
            asked = replace(request(), num_choices=num_choices, lease=lease.lease, num_leased=end)
            chunks = await results(receiver, complete, asked)
            expected = tokens(await results(other, complete, request()))
            assert [tokens(chunks, i) for i in range(num_choices)] == [expected] * num_choices
            assert chunks[0].num_cached_tokens >= end - 3

    asyncio.run(main())


def test_text_goes_on_behind_what_was_told_before() -> None:
    async def main() -> None:
        async with node(FakeNetwork()) as place:
            whole = await results(place, complete, request())
            before = tokens(whole)[:5]
            rest = await results(
                place, complete, replace(request((*PROMPT, *before), 7), num_generated=5)
            )
            assert tokens(rest) == tokens(whole)[5:]
            text = "".join(one.text for one in whole)
            assert text.endswith("".join(one.text for one in rest))

    asyncio.run(main())


@pytest.mark.parametrize(("end", "num_computed"), [(1112, 0), (1114, 2), (1115, 3)])
def test_what_is_cached_is_sent_without_computing(end: int, num_computed: int) -> None:
    """Nothing of whole pages; of the last one, if it ends within one, its tokens."""

    async def main() -> None:
        network = FakeNetwork()
        engine = CountingEngine(fake_pool(page_size=4, num_blocks=700), network=network)
        async with LocalNode({EngineId("fake"): engine}) as sender, node(network) as receiver:
            await results(sender, complete, request())
            before = engine.num_computed
            lease = await leased(receiver, PROMPT[:end])
            (sent,) = await results(sender, remote_send, send(lease, PROMPT))
            assert sent.num_tokens == end
            assert engine.num_computed - before == num_computed

    asyncio.run(main())


def test_a_send_that_fails_says_why_and_keeps_nothing() -> None:
    async def main() -> None:
        network = FakeNetwork()
        async with node(network) as sender, node(network) as receiver:
            lease = await leased(receiver, PROMPT[:100])
            network.is_cut = True
            with pytest.raises(QuireError, match="no engine answers at fake://2"):
                await results(sender, remote_send, send(lease, PROMPT[:100]))
            await sender.idle()
            (figures,) = sender.controller.statistics().engines
            assert figures.pool.num_held == 0

    asyncio.run(main())


def test_a_lease_is_renewed_and_cancelled() -> None:
    async def main() -> None:
        network = FakeNetwork()
        async with node(network) as receiver:
            lease = await leased(receiver, PROMPT[:100])
            await results(receiver, change_lease, LeaseRequest(MODEL, lease.lease, 90.0))
            await results(receiver, change_lease, LeaseRequest(MODEL, lease.lease))
            with pytest.raises(QuireError, match="was cancelled"):
                await results(receiver, change_lease, LeaseRequest(MODEL, lease.lease))

    asyncio.run(main())


def test_a_lease_that_ends_when_all_has_arrived_leaves_its_pages_in_the_cache() -> None:
    async def main() -> None:
        network = FakeNetwork()
        async with node(network) as sender, node(network) as receiver:
            lease = await leased(receiver, PROMPT[:100])
            asked = LeaseRequest(MODEL, lease.lease, when_arrived=True)
            await results(sender, remote_send, send(lease, PROMPT[:100]))
            await results(receiver, change_lease, asked)
            await receiver.idle()
            (figures,) = receiver.controller.statistics().engines
            assert (figures.pool.num_held, figures.pool.num_cached) == (0, 100 // 4)
            assert (await leased(receiver, PROMPT[:100])).num_matched == 100

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_generated": 1115}, "num_generated is 1115"),
        ({"num_leased": 1115}, "1115 of 1115 prompt tokens"),
        ({"num_prompt_logprobs": 1}, "no log probabilities"),
    ],
)
def test_a_request_that_no_lease_can_serve_is_refused(fields: dict[str, int], words: str) -> None:
    lease = LeaseName(EngineId("fake"), 0, 1, KEY)
    with pytest.raises(InvalidArgument, match=words):
        replace(request(), **{"lease": lease, **fields})  # type: ignore[arg-type]
