"""Programs take pages to other positions, and know where they are then."""

from __future__ import annotations

import pytest
from programs_node import node_of

from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument, PromptTooLong, TraitMissing
from quire.core.ids import EngineId
from quire.core.traits import Trait
from quire.programs.api import connect_api
from quire.testing import FakeEngine, LocalNode, fake_pool
from quire.testing.oracle import ReferenceContext, expected_decode, turned

PROMPT = [40, 41, 42, 43, 44, 45]


async def test_pages_go_on_and_what_is_computed_behind_sees_them_there() -> None:
    async with node_of() as local:
        api = connect_api(local.connect())
        assert Trait.REPOSITION in api.available_traits()
        pages = api.alloc_kvpage(2)
        await api.decode([], PROMPT, pages, stop=StopSpec(0), position=0)
        api.reposition_kvpage(pages[1], 5)
        await api.reposition_kvpage(pages, 3)
        assert [page.positions for page in pages] == [(3, 4, 5, 6), (12, 13)]
        behind = api.alloc_kvpage(2)
        done = await api.decode(pages, [50], behind, stop=StopSpec(4), position=14)
        seen = ReferenceContext().run_tokens(PROMPT)[0].seen
        moved = tuple(turned(token, 3 if i < 4 else 8) for i, token in enumerate(seen))
        expected = expected_decode([50], StopSpec(4), context=ReferenceContext(moved), position=14)
        assert done.token_ids == expected.tokens
        api.close()


async def test_what_cannot_be_is_refused() -> None:
    async with node_of() as local:
        api = connect_api(local.connect())
        pages = api.alloc_kvpage(2)
        await api.decode([], PROMPT, pages, stop=StopSpec(0), position=0)
        with pytest.raises(InvalidArgument, match="holds position 0, which a shift of -1"):
            api.reposition_kvpage(pages, -1)
        with pytest.raises(InvalidArgument, match="at least one page"):
            api.reposition_kvpage([], 1)
        with pytest.raises(InvalidArgument, match="appears twice"):
            api.reposition_kvpage([pages[0], pages[0]], 1)
        with pytest.raises(InvalidArgument, match="shift is '3'"):
            api.reposition_kvpage(pages, "3")  # type: ignore[arg-type]
        with pytest.raises(PromptTooLong, match="model's 4096 positions"):
            api.reposition_kvpage(pages, 4092)
        assert pages[0].positions == (0, 1, 2, 3)
        api.close()


async def test_a_model_without_the_trait_is_named() -> None:
    engine = FakeEngine(fake_pool(page_size=4))
    engine.info.traits.remove(Trait.REPOSITION)
    async with LocalNode({EngineId("fake"): engine}) as local:
        api = connect_api(local.connect())
        pages = api.alloc_kvpage(1)
        with pytest.raises(TraitMissing, match="Reposition"):
            api.reposition_kvpage(pages, 1)
        api.close()
