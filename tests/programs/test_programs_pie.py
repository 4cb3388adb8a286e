"""Pie 4.2 by three roads over the real controller: the same tokens, whatever the page size."""

from __future__ import annotations

from programs_node import node_of

from quire.programs.api import Api, connect_api
from quire.programs.library import LIBRARY
from quire.programs.sdk import Context

PAGE_SIZES = (1, 4, 16)


async def pie_listing(api: Api) -> list[int]:
    """Pie 4.2 as printed: a page holds one token."""
    tokenize, detokenize, embed_txt = api.tokenize, api.detokenize, api.embed_txt
    alloc_emb, alloc_kvpage, forward = api.alloc_emb, api.alloc_kvpage, api.forward
    get_next_dist, output = api.get_next_dist, []

    prom = tokenize("Hello,")
    tok_limit = len(prom) + 10
    prom_emb = alloc_emb(len(prom))
    gen_emb = alloc_emb(1)
    kv = alloc_kvpage(tok_limit)

    pos = list(range(len(prom)))
    embed_txt(prom, pos, prom_emb)
    forward([], prom_emb, kv[: len(prom)], gen_emb)

    for i in range(len(prom), tok_limit):
        dist = await get_next_dist(gen_emb)
        gen = dist.max_index()
        output.append(gen)
        assert isinstance(detokenize(gen), str)
        embed_txt(gen, [i], gen_emb)
        forward(kv[:i], gen_emb, kv[i : i + 1], gen_emb)

    api.dealloc_emb(prom_emb)
    api.dealloc_emb(gen_emb)
    api.dealloc_kvpage(kv)
    await api.synchronize()
    return output


async def three_lines(api: Api) -> list[int]:
    model = api.available_models()[0]
    ctx = Context(model)
    ctx.fill("Hello,")
    await ctx.generate_until(max_tokens=10, ignore_eos=True)
    return list(ctx.tokens[-10:])


async def test_the_printed_listing_and_the_three_lines_say_the_same() -> None:
    outputs = []
    for page_size in PAGE_SIZES:
        async with node_of(page_size) as node:
            api = connect_api(node.connect())
            if page_size == 1:
                outputs.append(await pie_listing(api))
            outputs.append(await three_lines(api))
            low_level = LIBRARY["low_level_completion"]
            said = await low_level(api, "Hello,", 10)
            assert said["text"] == api.detokenize(outputs[-1])
            api.close()
    assert len(outputs) == 4
    assert all(output == outputs[0] for output in outputs)
