"""Where the strategy ``migrating`` sends a request, by what engines have and how busy they are."""

from __future__ import annotations

import msgspec
import pytest

from quire.cluster.engines.interfaces import (
    Engine,
    LocatedPrompt,
    PrepRecvResult,
    Prompt,
    RemoteSendResult,
)
from quire.cluster.engines.trial import TrialEngine
from quire.cluster.nodes.page_tree import PageChange, PageTree
from quire.cluster.requests.request import Request
from quire.cluster.strategies.migrating import Migrating

TEXT = "A long text that engines have computed before. " * 40


class Moving(TrialEngine):
    """Notes what it sends of a prompt."""

    def __init__(self, name: str, located: LocatedPrompt | None = None) -> None:
        super().__init__(name, located)
        self.sent: list[tuple[int, int]] = []

    async def remote_send(
        self,
        request: Request,
        received: PrepRecvResult,
        *,
        begin: int,
        end: int,
        prompt: Prompt | None = None,
    ) -> RemoteSendResult:
        self.sent.append((begin, end))
        return RemoteSendResult(end - begin)


def engine(name: str, load: int) -> TrialEngine:
    made = TrialEngine(name)
    made.load = load
    return made


async def chosen(strategy: Migrating, engines: list[Engine], text: str = TEXT) -> str:
    body = msgspec.json.encode({"model": "trial", "prompt": text, "max_tokens": 4})
    headers = [(b"content-type", b"application/json")]
    request = Request("POST", "/v1/completions", headers, body, "r")
    return (await strategy(request, engines)).engine


async def test_of_engines_with_the_same_the_least_busy_one_is_the_holder() -> None:
    strategy = Migrating(max_extra=2)
    busy, idle = engine("busy", 1), engine("idle", 0)
    for alone in (busy, idle):
        assert await chosen(strategy, [alone]) == alone.name
    assert await chosen(strategy, [busy, idle]) == "idle"
    assert await chosen(strategy, [idle, busy]) == "idle"


async def test_a_holder_is_left_only_for_one_that_is_much_less_busy() -> None:
    strategy = Migrating(max_extra=2)
    holder, other = engine("holder", 0), engine("other", 0)
    assert await chosen(strategy, [holder]) == "holder"
    holder.load = 2
    assert await chosen(strategy, [other, holder]) == "holder"
    assert await chosen(strategy, [other, holder], "Something else. " * 40) == "other"
    holder.load = 3
    assert await chosen(strategy, [other, holder]) == "other"
    holder.load = 0
    other.load = 1
    assert await chosen(strategy, [other, holder]) == "holder", "both have it now"


def located(**num_pages: int) -> LocatedPrompt:
    """A prompt of 500 tokens in pages of 64, of which each engine has so many."""
    tree, keys = PageTree(), range(500 // 64)
    for name, num in num_pages.items():
        tree.apply(name, PageChange("trial", 0, None, 0, keys[:num], ()))
    return LocatedPrompt(list(range(500)), keys, 64, tree.matched(keys, 64))


@pytest.mark.parametrize(
    ("there", "sent"),
    [
        (located(holder=7), [(0, 448)]),  # and not the 52 behind the last full page
        (located(holder=2), [(0, 128)]),  # it has lost the rest meanwhile
        (located(holder=1), []),  # too little: ``min_tokens``
        (located(), []),
        (None, [(0, 493)]),  # no node reports its index: what the characters suggest
    ],
)
async def test_the_holder_sends_what_it_has_and_computes_nothing(
    there: LocatedPrompt | None, sent: list[tuple[int, int]]
) -> None:
    strategy = Migrating(max_extra=2)
    holder, other = Moving("holder", there), Moving("other", there)
    assert await chosen(strategy, [holder]) == "holder"
    holder.load = 3
    assert await chosen(strategy, [other, holder]) == "other"
    assert (holder.sent, other.sent) == (sent, [])
