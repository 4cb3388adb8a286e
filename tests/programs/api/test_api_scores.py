"""Programs ask where their tokens looked. The fake engine gives equal shares to what is seen."""

from __future__ import annotations

from itertools import chain

import pytest
from programs_node import node_of

from quire.core.errors import InvalidArgument, TraitMissing
from quire.core.ids import EngineId
from quire.core.traits import Trait
from quire.programs.api import Api, AttentionScores, Embed, connect_api
from quire.testing import FakeEngine, LocalNode, fake_pool

PROMPT = list(range(40, 49))


def embedded(api: Api, start: int, stop: int) -> list[Embed]:
    embeds = api.alloc_emb(stop - start)
    api.embed_txt(PROMPT[start:stop], list(range(start, stop)), embeds)
    return embeds


def shares(start: int, stop: int) -> list[float]:
    """Mass of positions 0..stop-1 when tokens ``start`` to ``stop - 1`` see all before them."""
    return [
        sum(1 / (token + 1) for token in range(start, stop) if position <= token)
        for position in range(stop)
    ]


def check(scores: AttentionScores, start: int, stop: int, num_pages: int) -> None:
    wanted = shares(start, stop)
    padded = [*wanted[:start], *[0.0] * (num_pages * 4 - start)]
    by_page = [sum(padded[first : first + 4]) for first in range(0, len(padded), 4)]
    assert scores.num_layers == 2
    for layer in range(2):
        assert scores.pages[layer] == pytest.approx(by_page)
        assert scores.inputs[layer] == pytest.approx(wanted[start:])
        if scores.slots is not None:
            assert [*chain(*scores.slots[layer])] == pytest.approx(padded)
    assert scores.by_page() == pytest.approx(by_page)


async def test_mass_of_pages_slots_and_inputs() -> None:
    """A page that stands in ``ikv`` and ``okv``: what it held before, and what it gets now."""
    async with node_of() as local:
        api = connect_api(local.connect())
        assert Trait.SCORES in api.available_traits()
        pages = api.alloc_kvpage(3)
        scores = await api.forward_with_scores(pages, embedded(api, 0, 6), pages)
        assert scores.slots is None
        check(scores, 0, 6, num_pages=3)
        scores = await api.forward_with_scores(pages, embedded(api, 6, 9), pages, slots=True)
        check(scores, 6, 9, num_pages=3)
        assert scores.by_slot()[1] == pytest.approx([*shares(6, 9)[4:6], 0.0, 0.0])
        api.close()


@pytest.mark.parametrize("is_in_context", [True, False])
async def test_a_forward_in_parts_adds_up(is_in_context: bool) -> None:
    """Long inputs run in parts; what earlier parts wrote counts as inputs all the same."""
    pool = fake_pool(page_size=4, num_blocks=64, max_batch_tokens=4)
    async with LocalNode({EngineId("fake"): FakeEngine(pool)}) as local:
        api = connect_api(local.connect())
        pages = api.alloc_kvpage(3)
        context = pages if is_in_context else []
        scores = await api.forward_with_scores(context, embedded(api, 0, 9), pages, slots=True)
        assert local.controller.statistics().engines[0].num_batches == 3
        for layer in range(2):
            assert scores.inputs[layer] == pytest.approx(shares(0, 9))
            assert scores.pages[layer] == [0.0] * len(context)
        api.close()


async def test_hidden_slots_and_masks_have_no_mass() -> None:
    async with node_of() as local:
        api = connect_api(local.connect())
        page = api.alloc_kvpage(1)[0]
        api.forward([], embedded(api, 0, 4), [page])
        api.mask_kvpage(page, [True, False, True, True])
        token = embedded(api, 4, 5)
        scores = await api.forward_with_scores(page, token, slots=True)
        assert scores.by_slot() == [pytest.approx([0.25, 0.0, 0.25, 0.25])]
        mask = [[False, True, True, False, True]]
        scores = await api.forward_with_scores(page, token, mask=mask, slots=True)
        assert scores.by_slot() == [pytest.approx([0.0, 0.0, 0.5, 0.0])]
        assert scores.inputs == [pytest.approx([0.5])] * 2
        api.close()


async def test_forwards_of_one_message_keep_their_scores_apart() -> None:
    async with node_of() as local:
        api = connect_api(local.connect())
        queues = [api.create_queue() for _ in range(3)]
        replies = []
        for count, queue in enumerate(queues, start=1):
            embeds = api.alloc_emb(queue, count)
            api.embed_txt(queue, PROMPT[:count], list(range(count)), embeds)
            if count == 2:
                api.forward(queue, [], embeds)
            else:
                replies.append(api.forward_with_scores(queue, [], embeds))
        one, three = [await reply for reply in replies]
        assert one.inputs[0] == pytest.approx([1.0])
        assert three.inputs[0] == pytest.approx(shares(0, 3))
        assert three.pages == [[], []]
        assert three.by_page() == []
        api.close()


async def test_bad_input_and_a_model_without_the_trait() -> None:
    async with node_of() as local:
        api = connect_api(local.connect())
        page = api.alloc_kvpage(1)[0]
        with pytest.raises(InvalidArgument, match="the mask is"):
            api.forward_with_scores(page, embedded(api, 0, 2), mask=[[True]])
        api.close()
    engine = FakeEngine(fake_pool(page_size=4))
    engine.info.traits.remove(Trait.SCORES)
    async with LocalNode({EngineId("fake"): engine}) as local:
        api = connect_api(local.connect())
        with pytest.raises(TraitMissing, match="Scores"):
            api.forward_with_scores([], embedded(api, 0, 1))
        api.close()
