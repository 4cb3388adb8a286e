"""Programs choose adapters: by argument, by the model of a queue, in the SDK."""

from __future__ import annotations

import pytest
from programs_node import node_of

from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument, TraitMissing
from quire.core.traits import Trait
from quire.programs.api import Api, connect_api
from quire.programs.builtin import CompletionRequest, complete
from quire.programs.sdk import Context
from quire.testing import LocalNode, ReferenceContext, expected_dist, expected_tokens

NAMES = ["formal", "brief"]
PROMPT = list(range(40, 49))
STOP = StopSpec(max_tokens=6)


def node() -> LocalNode:
    return node_of(adapters=NAMES)


def expected(adapter: int, prompt: list[int] = PROMPT) -> list[int]:
    return expected_tokens(prompt, STOP, adapter=adapter)


async def decode(api: Api, *, queue_on: str | None = None, adapter: str | None = None) -> list[int]:
    queue = api.create_queue(queue_on)
    pages = api.alloc_kvpage(queue, 4)
    stream = api.decode(queue, pages, PROMPT, pages, stop=STOP, position=0, adapter=adapter)
    return (await stream).token_ids


async def test_adapters_are_listed_by_name_and_as_models() -> None:
    async with node() as local:
        api = connect_api(local.connect())
        assert api.available_adapters() == NAMES
        assert [model.id for model in api.available_models()] == ["fake", *NAMES]
        assert Trait.ADAPTER in api.available_traits()
        api.close()


async def test_decode_runs_with_the_adapter_of_its_argument_or_of_its_queue() -> None:
    async with node() as local:
        api = connect_api(local.connect())
        assert await decode(api) == expected(-1)
        assert await decode(api, adapter="formal") == expected(0)
        assert await decode(api, queue_on="brief") == expected(1)
        assert await decode(api, queue_on="brief", adapter="formal") == expected(0)
        api.close()


async def test_forward_with_adapter() -> None:
    async with node() as local:
        api = connect_api(local.connect())
        dists = []
        for adapter in (None, *NAMES):
            embeds, out = api.alloc_emb(len(PROMPT)), api.alloc_emb(1)
            api.embed_txt(PROMPT, list(range(len(PROMPT))), embeds)
            if adapter is None:
                api.forward([], embeds, (), out)
            else:
                api.forward_with_adapter(adapter, [], embeds, out)
            dists.append((await api.get_next_dist(out)).token_ids)
        queue = api.create_queue("brief")
        embeds, out = api.alloc_emb(queue, len(PROMPT)), api.alloc_emb(queue, 1)
        api.embed_txt(queue, PROMPT, list(range(len(PROMPT))), embeds)
        api.forward(queue, [], embeds, (), out)
        assert (await api.get_next_dist(queue, out)).token_ids == dists[2]
        for adapter, dist in zip((-1, 0, 1), dists, strict=True):
            _, hidden = ReferenceContext().run_tokens(PROMPT, adapter=adapter)
            vocab_size = local.models()[0].info.vocab_size
            assert dist == expected_dist(hidden[-1], vocab_size).token_ids
        api.close()


async def test_import_prefix_takes_the_pages_of_its_adapter() -> None:
    async with node() as local:
        api = connect_api(local.connect())
        await decode(api, adapter="formal")
        assert (await api.import_prefix(PROMPT)).num_tokens == 0
        assert (await api.import_prefix(PROMPT, adapter="formal")).num_tokens == 8
        assert (await api.import_prefix(api.create_queue("formal"), PROMPT)).num_tokens == 8
        api.close()


async def test_a_context_and_its_forks_keep_their_adapter() -> None:
    async with node() as local:
        api = connect_api(local.connect())
        for ctx in (Context(api, adapter="brief"), Context(api.available_models()[2])):
            ctx.fill(PROMPT)
            fork = ctx.fork()
            for one in (ctx, fork):
                generated = await one.generate(max_tokens=6, ignore_eos=True)
                assert list(generated.token_ids) == expected(1)
        api.close()


async def test_the_completion_program_serves_an_adapter_by_its_name() -> None:
    async with node() as local:
        api = connect_api(local.connect())
        for number, name in enumerate(NAMES):
            request = CompletionRequest(
                prompt=tuple(PROMPT), max_tokens=6, model=name, ignore_eos=True
            )
            said = [token async for chunk in complete(api, request) for token in chunk.token_ids]
            assert said == expected(number)
        api.close()


async def test_an_unknown_adapter_is_refused() -> None:
    async with node() as local:
        api = connect_api(local.connect())
        with pytest.raises(InvalidArgument, match="no adapter 'rude'; it has formal, brief"):
            await decode(api, adapter="rude")
        api.close()


async def test_without_adapters_the_trait_is_missing() -> None:
    async with node_of() as local:
        api = connect_api(local.connect())
        assert api.available_adapters() == []
        assert Trait.ADAPTER not in api.available_traits()
        with pytest.raises(TraitMissing, match="Adapter"):
            await decode(api, adapter="formal")
        embeds = api.alloc_emb(1)
        with pytest.raises(TraitMissing, match="Adapter"):
            api.forward_with_adapter("formal", [], embeds)
        api.close()
