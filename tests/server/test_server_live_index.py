"""Readers that follow the prefix indexes: what an event says, when readers look, how they end."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quire.control import EngineIndex, IndexPlace
from quire.control.memory.index_journal import IndexChanges
from quire.core.config import ServerConfig
from quire.core.errors import QuotaExceeded
from quire.core.ids import EngineId, ModelId
from quire.server.answers.event_stream import HEARTBEAT
from quire.server.microserving.index_event import IndexEvent
from quire.server.microserving.live_index import (
    HEARTBEAT_S,
    IndexStream,
    LiveIndex,
    index_events,
)
from quire.server.routes import microserving as routes

ENGINE = EngineId("e")


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(24)


def index(since: int | None, number: int, *changes: tuple[int, bool]) -> EngineIndex:
    keys = b"".join(key(at) for at, _ in changes)
    told = IndexChanges(since, number, keys, bytes(is_new for _, is_new in changes))
    return EngineIndex(ENGINE, ModelId("m"), 3, "content", 16, told)


def numbers(keys: str) -> list[int]:
    packed = b64decode(keys)
    return [int.from_bytes(packed[at : at + 8], "big") for at in range(0, len(packed), 8)]


def test_what_came_and_went_is_told_once() -> None:
    changes = index(5, 10, (1, True), (2, True), (1, False), (3, False), (3, True))
    (event,) = index_events(changes, max_keys=99)
    assert (event.since, event.number, event.epoch) == (5, 10, 3)
    assert numbers(event.inserted) == [2, 3]
    assert numbers(event.evicted) == [1]


def test_much_comes_in_parts() -> None:
    events = list(index_events(index(None, 7, *[(n, True) for n in range(5)]), max_keys=2))
    assert [(event.part, event.num_parts) for event in events] == [(0, 3), (1, 3), (2, 3)]
    assert [numbers(event.inserted) for event in events] == [[0, 1], [2, 3], [4]]
    assert all(event.since is None for event in events)


def test_an_empty_index_is_told_too() -> None:
    (event,) = index_events(index(None, 7), max_keys=2)
    assert (event.inserted, event.num_parts) == ("", 1)


async def test_a_reader_is_told_what_is_new_and_that_the_node_lives() -> None:
    now_s, asked, news = 0.0, [], [[index(None, 1)], [], [index(1, 2, (9, True))]]

    def look(known: Mapping[EngineId, IndexPlace]) -> Sequence[EngineIndex]:
        asked.append(dict(known))
        return news.pop(0) if news else []

    async def sleep(delay_s: float) -> None:
        nonlocal now_s
        now_s += delay_s
        await asyncio.sleep(0)

    live = LiveIndex(look, lambda: now_s > 2 * HEARTBEAT_S, lambda: now_s, sleep)
    said = [event async for event in live.events()]
    first, second, *beats, done = said
    assert msgspec.json.decode(first[6:], type=IndexEvent).number == 1
    assert numbers(msgspec.json.decode(second[6:], type=IndexEvent).inserted) == [9]
    assert done == b"data: [DONE]\n\n"
    assert set(beats) == {HEARTBEAT}
    assert asked[0] == {}
    assert asked[1] == asked[2] == {ENGINE: IndexPlace(3, 1)}
    assert asked[3] == {ENGINE: IndexPlace(3, 2)}


def test_readers_are_limited() -> None:
    live = LiveIndex(lambda known: (), lambda: True, max_readers=1)
    live.enter()
    with pytest.raises(QuotaExceeded):
        live.enter()
    live.leave()
    live.enter()


def test_who_does_not_read_the_index_is_waited_for_as_long_as_the_node_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A router that stands still would hold its reader's place for ever."""
    context = SimpleNamespace(
        index=LiveIndex(lambda known: (), lambda: True),
        config=ServerConfig(write_timeout_s=7.0),
    )
    monkeypatch.setattr(routes, "exchanges_of", lambda request: None)
    monkeypatch.setattr(routes, "context_of", lambda request: context)
    request: Any = None
    stream = asyncio.run(routes.index(request))
    assert isinstance(stream, IndexStream)
    assert stream._writes._limit_s == 7.0
