"""The settings of Python's garbage collector in Quire's processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from quire.core.interpreter import collect_seldom, collection_paused


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def num_collections() -> int:
    return int(gc.get_stats()[0]["collections"])


def test_a_thousand_launches_do_not_trigger_garbage_collection() -> None:
    collect_seldom()
    gc.collect()
    before = num_collections()
    made: list[list[int]] = [[] for _ in range(80_000)]
    assert num_collections() == before
    made += [[] for _ in range(80_000)]
    assert num_collections() == before + 1, "garbage is still found"


def test_a_pause_ends_as_it_began() -> None:
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled(), "the outer one goes on"
    assert gc.isenabled()
