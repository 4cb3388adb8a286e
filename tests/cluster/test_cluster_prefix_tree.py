"""What was routed where: the radix tree, and the strategies that go by it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cluster.engines.trial import TrialEngine
from quire.cluster.requests.prefix_tree import PrefixTree
from quire.cluster.requests.request import Request
from quire.cluster.strategies import Autellix, CacheAware, Migrating

BLOCK = 4
PROMPTS = st.lists(st.text("ab", max_size=24), max_size=12)


@given(PROMPTS, st.text("ab", max_size=24))
def test_it_finds_the_longest_beginning_in_whole_blocks(known: list[str], asked: str) -> None:
    tree: PrefixTree[int] = PrefixTree(block=BLOCK)
    for holder, prompt in enumerate(known):
        tree.add(prompt, holder)
    expected = {}
    for holder, prompt in enumerate(known):
        blocks = 0
        while (end := (blocks + 1) * BLOCK) <= min(len(prompt), len(asked)):
            if prompt[:end] != asked[:end]:
                break
            blocks += 1
        if blocks:
            expected[holder] = blocks * BLOCK
    assert tree.matched(asked) == expected


def test_ids_and_texts_are_apart() -> None:
    tree: PrefixTree[int] = PrefixTree(block=2)
    tree.add((1, 2, 3, 4), 1)
    assert tree.matched((1, 2, 3, 5)) == {1: 2}
    assert tree.matched("\x01\x02") == {}


def test_it_forgets_what_was_used_longest_ago_from_its_end() -> None:
    tree: PrefixTree[int] = PrefixTree(block=1, max_nodes=5)
    tree.add("abc", 1)
    tree.add("xyz", 2)
    assert len(tree) == 5
    assert tree.matched("abc") == {1: 2}
    tree.add("abc", 1)
    assert tree.matched("xyz") == {2: 2}


def ask(prompt: str, home: str | None = None) -> Request:
    request = Request("POST", "/v1/completions", [], msgspec.json.encode({"prompt": prompt}), "r")
    request.home = home
    return request


def test_cache_aware_follows_a_prompt_unless_its_engine_is_busy() -> None:
    route, engines = CacheAware(max_extra=2), [TrialEngine(name) for name in "abc"]

    def chosen(prompt: str) -> str:
        return asyncio.run(route(ask(prompt), engines)).engine

    context = "A long beginning that many have in common. " * 10
    assert chosen(context) == "a"
    engines[0].load = 2
    assert chosen(context + "one") == "a"
    assert chosen("Something else that nobody has asked before, long enough to count.") == "b"
    engines[0].load = 3
    assert chosen(context + "two") == "b"
    engines[0].load = 0
    engines[0].epoch = engines[1].epoch = 1  # both have started again, with nothing in their caches
    engines[1].load = engines[0].load = 1
    assert chosen(context + "three") == "c"


def test_migrating_leaves_short_contexts_and_takes_the_least_used() -> None:
    route = Migrating(max_extra=0, min_tokens=10_000)
    engines = [TrialEngine(name) for name in "ab"]
    context = "x" * 640
    assert asyncio.run(route(ask(context), engines)).engine == "a"
    engines[0].load = 1
    assert asyncio.run(route(ask(context + "y"), engines)).engine == "b"
    engines[1].load = 5
    assert asyncio.run(route(ask(context + "z"), engines)).engine == "a"


@pytest.mark.parametrize(("length", "expected"), [(10, "b"), (9000, "a")])
def test_autellix_keeps_long_prompts_at_home(length: int, expected: str) -> None:
    engines = [TrialEngine("a"), TrialEngine("b")]
    engines[0].load = 3
    answer = asyncio.run(Autellix()(ask("x" * length, home="a"), engines))
    assert answer.engine == expected
