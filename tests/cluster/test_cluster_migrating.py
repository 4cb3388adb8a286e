"""Where the strategy ``migrating`` sends a request, by what engines have and how busy they are."""

from __future__ import annotations

import msgspec

from quire.cluster.engines.interfaces import Engine
from quire.cluster.engines.trial import TrialEngine
from quire.cluster.requests.request import Request
from quire.cluster.strategies.migrating import Migrating

TEXT = "A long text that engines have computed before. " * 40


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
