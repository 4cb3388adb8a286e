"""Programs side by side on one node: what is one's own nobody else can use, or use up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from programs_node import level, node_of

from quire.core.decoding import StopSpec
from quire.core.errors import QuotaExceeded, UnknownHandle
from quire.core.quotas import Quotas
from quire.programs.api import Api
from quire.programs.sdk import Context
from quire.testing import LocalNode

TEXT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture
async def node() -> AsyncIterator[LocalNode]:
    async with node_of(4) as node:
        before = await level(node)
        yield node
        assert (await level(node))["pending"] == before["pending"] == 0


async def continuation(api: Api) -> str:
    return await Context(api).fill(TEXT).generate_until(max_tokens=8)


async def test_an_export_over_its_quota_fails_alone(node: LocalNode) -> None:
    async def greedy(api: Api) -> tuple[int, str]:
        queue = api.create_queue()
        pages = api.alloc_kvpage(queue, 3)
        tokens = api.tokenize(queue, TEXT)[:9]
        await api.decode(queue, [], tokens, pages, stop=StopSpec(max_tokens=1))
        await api.export_kvpage(queue, pages[:2], "within")
        with pytest.raises(QuotaExceeded, match="export"):
            await api.export_kvpage(queue, pages[2:], "beyond")
        other = api.create_queue()
        with pytest.raises(UnknownHandle):
            await api.import_kvpage(other, "beyond")
        listed = await api.list_exports("with")
        assert [(export.name, export.num_pages, export.own) for export in listed] == [
            ("within", 2, True)
        ]
        return len(await api.import_kvpage(api.create_queue(), "within")), await continuation(api)

    async def bystander(api: Api) -> str:
        said = [await continuation(api) for _ in range(3)]
        assert len(set(said)) == 1
        return said[0]

    alone = await node.run(bystander)
    beside = node.launch(bystander)
    bound = node.connect("greedy", quotas=Quotas(max_exported_pages=2))
    assert await node.run(greedy, connect=bound) == (2, alone)
    assert await beside.result() == alone


async def test_handles_of_another_program_are_no_handles(node: LocalNode) -> None:
    async def owner(api: Api) -> None:
        queue = api.create_queue()
        [page] = api.alloc_kvpage(queue, 1)
        [embed] = api.alloc_emb(queue, 1)
        await api.embed_txt(queue, [65], [0], [embed])
        await api.forward(queue, [], [embed], [page], [])
        await api.synchronize(queue)

        async def thief(other: Api) -> None:
            mine = other.create_queue()
            for use in (
                lambda: other.forward(mine, [page], [embed], [], []),
                lambda: other.dealloc_kvpage(mine, page),
                lambda: other.dealloc_emb(mine, embed),
                lambda: other.export_kvpage(mine, page, "stolen"),
            ):
                with pytest.raises(UnknownHandle, match="another program"):
                    await use()

        await node.run(thief)
        await api.forward(queue, [page], [embed], [embed])
        assert (await api.get_next_dist(queue, [embed])).token_ids, "still usable by its owner"

    await node.run(owner)


async def test_tenants_share_neither_cached_prefixes_nor_exports(node: LocalNode) -> None:
    async def num_cached(api: Api) -> int:
        queue = api.create_queue()
        return (await api.import_prefix(queue, api.tokenize(queue, TEXT))).num_tokens

    async def num_imported(api: Api) -> int:
        return len(await api.import_kvpage(api.create_queue(), "fox"))

    async def refused(api: Api) -> None:
        with pytest.raises(UnknownHandle, match="fox"):
            await num_imported(api)

    async def owner(api: Api) -> None:
        ctx = Context(api).fill(TEXT)
        await ctx.export("fox")
        mine = await num_cached(api)
        assert mine > 0
        red, blue = node.connect("red", tenant="red"), node.connect("blue", tenant="blue")
        assert await node.run(num_cached, connect=red) == mine
        assert await node.run(num_imported, connect=red) > 0
        assert await node.run(num_cached, connect=blue) == 0
        await node.run(refused, connect=blue)

    await node.run(owner, connect=node.connect("owner", tenant="red"))
