"""Programs give images to a model that sees them."""

from __future__ import annotations

import asyncio

import pytest
from programs_node import node_of

from quire.core.decoding import StopSpec
from quire.core.engine_info import ImageInput
from quire.core.errors import InvalidArgument, TraitMissing
from quire.core.traits import Trait
from quire.programs.api import Api, Embed, connect_api
from quire.testing import LocalNode

SEEN = ImageInput(num_embeds=6, token=9, max_bytes=100, max_pixels=1000, formats=("PNG", "JPEG"))
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
STOP = StopSpec(max_tokens=3)


def seeing_node() -> LocalNode:
    return node_of(images=SEEN)


async def answer(api: Api, image: bytes) -> list[int]:
    """Tokens after two of text, an image and one of text."""
    queue = api.create_queue()
    count = api.num_embs_needed(image)
    pages, embeds = api.alloc_kvpage(queue, 4), api.alloc_emb(queue, 2 + count)
    api.embed_txt(queue, [40, 41], [0, 1], embeds[:2])
    api.embed_img(queue, image, embeds[2:], list(range(2, 2 + count)))
    api.forward(queue, [], embeds, pages)
    stream = api.decode(queue, pages, [42], pages, stop=STOP, position=2 + count)
    tokens = (await stream).token_ids
    api.close_queue(queue)
    return tokens


async def test_what_follows_depends_on_the_image_alone() -> None:
    async with seeing_node() as local:
        api = connect_api(local.connect())
        assert Trait.INPUT_IMAGE in api.available_traits()
        first, again, other = [await answer(api, PNG + name) for name in (b"a", b"a", b"b")]
        assert first == again != other
        together = await asyncio.gather(*(answer(api, PNG + name) for name in (b"b", b"a", b"b")))
        assert together == [other, first, other]
        api.close()


async def test_pages_of_images_are_no_prefix_of_the_text_around() -> None:
    async with seeing_node() as local:
        api = connect_api(local.connect())
        await answer(api, PNG)
        tokens = [40, 41, *[SEEN.token] * 6, 42]
        assert (await api.import_prefix(tokens)).num_tokens == 0
        api.close()


async def test_num_embs_needed() -> None:
    async with seeing_node() as local:
        api = connect_api(local.connect())
        assert [api.num_embs_needed(one) for one in (PNG, JPEG, (20, 50), (1, 1))] == [6] * 4
        for bad in ((0, 5), (20, 51), b"GIF89a", b"", PNG + bytes(100)):
            with pytest.raises(InvalidArgument):
                api.num_embs_needed(bad)
        api.close()


async def test_bad_images_are_refused() -> None:
    async with seeing_node() as local:
        api = connect_api(local.connect())

        def embed(image: bytes, embeds: list[Embed], positions: list[int]) -> None:
            api.embed_img(image, embeds, positions)

        six = list(range(6))
        for image, count, positions, message in (
            (b"RIFF", 6, six, "not a PNG or JPEG"),
            (PNG + bytes(93), 6, six, "at most 100"),
            (PNG, 5, six[:5], "takes 6"),
            (PNG, 6, six[:5], "takes 6"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                embed(image, api.alloc_emb(count), positions)
        with pytest.raises(InvalidArgument, match="negative"):
            await api.embed_img(PNG, api.alloc_emb(6), [-1, *six[1:]])
        api.close()


async def test_a_damaged_image_poisons_its_queue_and_leaves_nothing_written() -> None:
    async with seeing_node() as local:
        api = connect_api(local.connect())
        embeds = api.alloc_emb(6)
        with pytest.raises(InvalidArgument, match="damaged"):
            await api.embed_img(PNG + b"damaged", embeds, list(range(6)))
        queue = api.create_queue()
        with pytest.raises(InvalidArgument, match="before anything was written"):
            await api.forward(queue, [], embeds)
        api.close()


async def test_a_model_that_sees_nothing() -> None:
    async with node_of() as local:
        api = connect_api(local.connect())
        assert Trait.INPUT_IMAGE not in api.available_traits()
        with pytest.raises(TraitMissing, match="takes images"):
            api.num_embs_needed(PNG)
        with pytest.raises(TraitMissing, match="InputImage"):
            api.embed_img(PNG, api.alloc_emb(6), list(range(6)))
        api.close()
