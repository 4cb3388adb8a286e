"""A prefix hit implies equal tokens, the same model and the same tenant."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from control_world import World, alone
from hypothesis import given, settings

from quire.control.memory.content import ChainNode, Content, PromptKeys, prompt_keys
from quire.control.memory.eviction_order import MOST_LOOKED_AT
from quire.control.memory.packed_tokens import pack_tokens
from quire.control.memory.prefix_index import PrefixIndex
from quire.core import commands as c
from quire.core.ids import TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
tokens = st.lists(st.integers(0, 3), max_size=12)


def insert(index: PrefixIndex, tenant: TenantId, prompt: list[int]) -> list[Content]:
    parent: ChainNode | None = None
    contents = []
    for start in range(0, len(prompt) - len(prompt) % 2, 2):
        content = Content(parent, canonical=True)
        content.tokens = prompt[start : start + 2]
        content.node = parent = index.child(tenant, parent, content.tokens)
        content.num_refs = 1
        index.insert(content)
        contents.append(content)
    return contents


@settings(max_examples=60, deadline=None, database=None)
@given(prompts=st.lists(st.tuples(st.sampled_from([RED, BLUE]), tokens), max_size=6), wanted=tokens)
def test_a_hit_is_a_prefix_of_a_prompt_of_the_same_tenant(
    prompts: list[tuple[TenantId, list[int]]], wanted: list[int]
) -> None:
    index = PrefixIndex("model", page_size=2)
    for tenant, prompt in prompts:
        insert(index, tenant, prompt)
    index.check_invariants()
    for tenant in (RED, BLUE):
        found = index.match(tenant, None, pack_tokens(wanted), 99)
        held = [token for content in found for token in content.tokens]
        assert held == wanted[: len(held)]
        full = [prompt[: len(prompt) // 2 * 2] for owner, prompt in prompts if owner == tenant]
        longest = max((_common_pages(prompt, wanted) for prompt in full), default=0)
        assert len(found) == longest


@settings(max_examples=60, deadline=None, database=None)
@given(prompts=st.lists(tokens, max_size=4), wanted=tokens, num_known=st.integers(0, 4))
def test_keys_that_are_known_find_what_computing_them_finds(
    prompts: list[list[int]], wanted: list[int], num_known: int
) -> None:
    index = PrefixIndex("model", page_size=2)
    for prompt in prompts:
        insert(index, RED, prompt)
    for root in (index.root_key(RED), index.root_key(BLUE)):  # those of another root are no help
        known = PromptKeys(pack_tokens(wanted), root)
        known.keys += index.keys(root, pack_tokens(wanted))[:num_known]
        found = index.match(RED, None, pack_tokens(wanted), 99, known=known)
        assert found == index.match(RED, None, pack_tokens(wanted), 99)


def _common_pages(prompt: list[int], wanted: list[int]) -> int:
    pages = 0
    while (
        len(prompt) >= 2 * pages + 2
        and len(wanted) >= 2 * pages + 2
        and prompt[: 2 * pages + 2] == wanted[: 2 * pages + 2]
    ):
        pages += 1
    return pages


@settings(max_examples=60, deadline=None, database=None)
@given(prompts=st.lists(tokens, max_size=6), removed=st.integers(0, 20), wanted=tokens)
def test_a_key_that_the_index_remembers_is_that_of_the_tokens(
    prompts: list[list[int]], removed: int, wanted: list[int]
) -> None:
    index = PrefixIndex("model", page_size=2)
    contents = [content for prompt in prompts for content in insert(index, RED, prompt)]
    for content in contents[:removed]:
        if content.indexed:
            index.remove(content)
            index.check_invariants()
    root = index.root_key(RED)
    assert index.keys(root, pack_tokens(wanted)) == prompt_keys(root, 2, wanted)


def test_the_same_tokens_behind_another_prefix_are_another_page() -> None:
    index = PrefixIndex("model", page_size=2)
    insert(index, RED, [1, 1, 5, 5])
    assert len(index.match(RED, None, pack_tokens([1, 1, 5, 5]), 9)) == 2
    assert index.match(RED, None, pack_tokens([5, 5]), 9) == []
    assert PrefixIndex("other", 2).root_key(RED) != index.root_key(RED)
    assert index.root_key(RED) != index.root_key(BLUE)


PROMPT = list(range(30, 43))


def test_a_decode_maps_what_another_program_of_the_tenant_has_computed() -> None:
    world = World()
    world.program(1, tenant="red")
    first = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6))[1]
    assert first.chunks[0].num_cached_tokens == 0
    for program, tenant, num_cached in ((2, "red", 12), (3, "blue", 0)):
        world.program(program, tenant=tenant)
        decode = world.do(program, world.alloc(range(8)), world.decode(range(8), PROMPT, 6))[1]
        assert decode.chunks[0].num_cached_tokens == num_cached
        assert decode.tokens == first.tokens
    rows = {row.program: row for row in world.controller.processes()}
    assert [rows[p].num_cached_tokens for p in (1, 2, 3)] == [0, 12, 0]


def test_one_token_is_always_computed_and_sampled_tokens_are_found_too() -> None:
    world = World()
    world.program()
    prompt = PROMPT[:8]
    first = world.do(1, world.alloc(range(8)), world.decode(range(8), prompt, 9))[1]
    again = world.do(1, world.alloc(range(10, 18)), world.decode(range(10, 18), prompt, 9))[1]
    assert again.chunks[0].num_cached_tokens == 7, "of two full pages the last token is computed"
    assert again.tokens == first.tokens
    turn = [*prompt, *first.tokens, 99]
    pages = range(20, 32)
    follow = world.do(1, world.alloc(pages), world.decode(pages, turn, 5))[1]
    assert follow.chunks[0].num_cached_tokens == 16
    assert follow.tokens == alone(turn, 5)


def test_cache_false_neither_reads_nor_feeds_the_index() -> None:
    world = World()
    world.program()
    world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6, cache=False))
    assert world.figures.prefix.num_indexed == 0
    world.do(1, world.alloc(range(10, 18)), world.decode(range(10, 18), PROMPT, 6))
    pages = range(20, 28)
    third = world.do(1, world.alloc(pages), world.decode(pages, PROMPT, 6, cache=False))[1]
    assert third.chunks[0].num_cached_tokens == 0


def test_forward_of_literal_tokens_feeds_the_index_and_masked_pages_do_not() -> None:
    world = World()
    world.program()
    prompt = PROMPT[:9]
    mask = [[True] * (i + 1) + [False] * (8 - i) for i in range(9)]
    for name, mask_or_none in (("plain", None), ("masked", mask)):
        pages = range(0, 3) if name == "plain" else range(10, 13)
        embeds = range(0, 9) if name == "plain" else range(10, 19)
        world.do(
            1,
            world.alloc(pages),
            world.alloc_embeds(embeds),
            world.embed(embeds, prompt if name == "plain" else [7, *prompt[1:]]),
            world.forward([], embeds, pages, mask=mask_or_none),
        )
    assert world.figures.prefix.num_indexed == 2
    (imported,) = world.do(1, c.ImportPrefix(id=world.id(), tokens=[*prompt, 1], pages=[50, 51]))
    assert imported.reply.num_tokens == 8
    assert [page.positions for page in imported.reply.pages] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    decode = world.do(
        1,
        world.alloc([60, 61]),
        world.decode([60, 61], [prompt[8]], 5, position=8, context=[50, 51]),
    )[1]
    assert decode.tokens == alone(prompt, 5)


def test_released_pages_stay_cached_until_their_memory_is_wanted() -> None:
    world = World(num_blocks=8)
    world.program()
    first = world.do(
        1, world.alloc(range(4)), world.decode(range(4), PROMPT, 3), world.dealloc(range(4))
    )[1]
    assert world.pool.num_held == 0
    assert world.pool.num_cached == 3
    pages = range(10, 18)
    world.do(1, world.alloc(pages), world.decode(pages, [*range(60, 85)], 6))
    assert world.figures.prefix.num_evicted > 0
    world.do(1, world.dealloc(pages))
    again = world.do(1, world.alloc(range(20, 24)), world.decode(range(20, 24), PROMPT, 3))[1]
    assert again.tokens == first.tokens


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_is_written_behind_a_begun_page_is_found_as_a_whole(is_cut: bool) -> None:
    """Also when a slot of it was hidden, and that slot is written anew."""
    prompt = list(range(20, 32))
    world = World()
    world.program(1)
    begun = 8 if is_cut else 6
    world.do(1, world.alloc(range(4)), world.decode(range(4), prompt[:begun], 0))
    if is_cut:
        hide = c.MaskPage(id=world.id(), page=1, visible=[True, True, True, False])
        world.do(1, hide, c.TruncatePage(id=world.id(), page=1, fill=3))
        begun = 7
    world.do(1, world.decode(range(4), prompt[begun:], 0, position=begun))
    world.program(2)
    world.do(2, world.alloc(range(4)), world.decode(range(4), prompt, 1))
    row = world.controller.processes()[1]
    assert row.num_cached_tokens == len(prompt) - 1, "the last one is run for what comes next"


@pytest.mark.parametrize("num_more", [2, 6, 7])
def test_a_begun_page_is_found_with_what_follows(num_more: int) -> None:
    """A text that is computed in parts finds what another program has computed in one."""
    prompt = list(range(20, 20 + 6 + num_more))
    world = World()
    world.program(1)
    whole = world.do(1, world.alloc(range(8)), world.decode(range(8), prompt, 6))[1]
    world.program(2)
    world.do(2, world.alloc(range(8)), world.decode(range(8), prompt[:6], 0))
    num_before = world.controller.processes()[1].num_cached_tokens
    (decode,) = world.do(2, world.decode(range(8), prompt[6:], 6, position=6))
    assert decode.tokens == whole.tokens
    row = world.controller.processes()[1]
    num_full = (6 + num_more) // 4 * 4 - 6
    assert row.num_cached_tokens - num_before == num_full - (num_full == num_more)


def test_a_begun_page_of_another_text_stays() -> None:
    world = World()
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), list(range(20, 36)), 0))
    world.program(2)
    world.do(2, world.alloc(range(8)), world.decode(range(8), [*range(20, 25), 99], 0))
    world.do(2, world.decode(range(8), [*range(26, 36)], 0, position=6))
    assert world.controller.processes()[1].num_cached_tokens == 4
    turn = [*range(20, 25), 99, *range(26, 36), 1]
    pages = range(10, 18)
    decode = world.do(2, world.alloc(pages), world.decode(pages, turn, 5))[1]
    assert decode.tokens == alone(turn, 5)


@settings(max_examples=80, deadline=None, database=None)
@given(
    prompts=st.lists(tokens, min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=12),
    wanted=tokens,
    behind=st.integers(0, 40),
)
def test_pages_that_go_and_come_in_any_order_are_found_by_their_keys(
    prompts: list[list[int]], steps: list[tuple[bool, int]], wanted: list[int], behind: int
) -> None:
    """What was indexed last behind a page only shortens the way: parents may go before children,
    come back behind them, and another content may hold the same tokens."""
    index = PrefixIndex("model", page_size=2)
    contents = [content for prompt in prompts for content in insert(index, RED, prompt)]
    for is_removal, pick in steps:
        content = contents[pick % len(contents)] if contents else None
        if content is not None and content.indexed and is_removal:
            index.remove(content)
        elif content is not None and not content.indexed:
            index.insert(content)
        index.check_invariants()
    by_key = {one.node.key: one for one in index.contents() if one.node is not None}
    parent = contents[behind % len(contents)].node if contents and behind else None
    start = index.root_key(RED) if parent is None else parent.key
    found: list[Content] = []
    for key in prompt_keys(start, 2, wanted):
        if key not in by_key:
            break
        found.append(by_key[key])
    assert index.match(RED, parent, pack_tokens(wanted), 99) == found
    assert index.keys(start, pack_tokens(wanted)) == prompt_keys(start, 2, wanted)
    index.clear()
    assert not any(content.latest or content.indexed for content in contents)


def test_the_beginnings_of_the_prompts_that_are_evicted_next() -> None:
    """Pages 0 to 2 and 3 to 5 of two prompts, the last page of each released first."""
    index = PrefixIndex("model", page_size=2)
    prompts = [insert(index, RED, [first] * 6) for first in (1, 2)]
    pages = [*prompts[0], *prompts[1]]
    for prompt in prompts:
        for content in reversed(prompt):
            content.num_refs = 0
            index.cache(content)

    def numbers(num: int) -> list[int]:
        return [pages.index(content) for content in index.beginnings(num)]

    assert numbers(2) == [1, 0]
    assert numbers(3) == [2, 1, 0]
    assert numbers(5) == [2, 1, 0, 4, 3]
    assert numbers(9) == [2, 1, 0, 5, 4, 3]
    pages[0].num_pins = 1
    assert numbers(3) == [2, 1, 3]


def test_of_a_long_prompt_no_more_than_a_bounded_part_is_looked_at() -> None:
    index = PrefixIndex("model", page_size=2)
    num_pages = MOST_LOOKED_AT + 10
    prompt = insert(index, RED, [1] * 2 * num_pages)
    for content in reversed(prompt):
        content.num_refs = 0
        index.cache(content)
    assert index.beginnings(2) == [prompt[11], prompt[10]]
