"""How many full engines a request asks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from http_peer import refused
from router_world import world

from quire.cluster.engines.full_engines import MOST_ASKED, FullEngines


@dataclass(frozen=True)
class One:
    name: str


ENGINES = [One(f"e{number}") for number in range(7)]


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def all_full(clock: Clock, retry_after: bytes = b"2") -> FullEngines:
    """Which have refused at 10.0, 10.1, ..., the last one first."""
    full = FullEngines(clock)
    for number, engine in enumerate(reversed(ENGINES)):
        clock.now_s = 10 + number / 10
        full.refuses(engine.name, "m", retry_after)
    return full


def names(full: FullEngines, num_refused: int = 0, model: str = "m") -> list[str]:
    return [one.name for one in full.worth_asking(ENGINES, model, num_refused)]


def test_if_all_are_full_those_are_asked_that_were_asked_longest_ago(clock: Clock) -> None:
    full = all_full(clock)
    assert names(full) == ["e4", "e5", "e6"]
    assert names(full, num_refused=2) == ["e6"]
    assert not names(full, num_refused=MOST_ASKED)
    full.refuses("e6", "m", b"2")
    clock.now_s += 0.1
    full.refuses("e5", "m", b"2")
    assert names(full) == ["e2", "e3", "e4"]


def test_if_one_may_have_room_all_may_be_asked(clock: Clock) -> None:
    everyone = [one.name for one in ENGINES]
    full = all_full(clock)
    assert names(full, model="another") == everyone
    clock.now_s = 12.0
    assert names(full, num_refused=5) == everyone, "the first time is over"
    full = all_full(clock)
    full.takes("e2", "m")
    assert names(full, num_refused=5) == everyone


def test_models_that_clients_make_up_are_forgotten_and_keep_out_no_others(clock: Clock) -> None:
    full = FullEngines(clock)
    for number in range(2000):
        full.refuses("e0", f"made up {number}", b"2")
    assert len(full) <= 1024
    clock.now_s += 2
    for engine in ENGINES:
        full.refuses(engine.name, "m", b"2")
    assert len(full) == len(ENGINES)
    assert len(names(full)) == MOST_ASKED


@pytest.mark.parametrize("retry_after", [b"", b"-1", b"Wed, 21 Oct 2026 07:28:00 GMT"])
def test_an_engine_that_does_not_say_how_long_is_asked_again(
    clock: Clock, retry_after: bytes
) -> None:
    assert len(names(all_full(clock, retry_after))) == len(ENGINES)


def test_nobody_is_left_out_for_longer_than_half_a_minute(clock: Clock) -> None:
    full = all_full(clock, b"86400")
    clock.now_s = 39.9
    assert len(names(full)) == MOST_ASKED
    clock.now_s = 40.0
    assert len(names(full)) == len(ENGINES)


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "mine"}])
async def test_the_next_requests_to_a_full_cluster_ask_few_of_its_nodes(
    headers: dict[str, str],
) -> None:
    full = replace(refused(503, "capacity", "full"), headers={"retry-after": "30"})
    async with world(7) as w:
        for node in w.nodes:
            node.refusal = full
        for num_asked in (7, 7 + MOST_ASKED, 7 + 2 * MOST_ASKED):
            answer = await w.complete(headers=headers)
            assert (answer.status_code, answer.json()["error"]["message"]) == (503, "full")
            assert sum(len(node.asked) for node in w.nodes) == num_asked
