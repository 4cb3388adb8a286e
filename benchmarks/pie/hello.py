"""Sends a message and ends: the smallest such program; ``hello.c`` does the same."""

from quire.core.errors import MailboxClosed
from quire.programs.api import Api
from quire.programs.sdk import inferlet


@inferlet("hello")
async def main(api: Api) -> None:
    await api.send("here")
    try:
        while True:
            await work(api, await api.receive())
    except MailboxClosed:
        return


async def work(api: Api, order: str) -> None:
    what, count = order.split()
    if what == "call":
        queue = api.create_queue()
        for _ in range(int(count)):
            done = api.dealloc_kvpage(queue, api.alloc_kvpage(queue, 1))
        await done
        api.close_queue(queue)
    elif what == "step":
        queue = api.create_queue()
        page, embeds = api.alloc_kvpage(queue, 1), api.alloc_emb(queue, 1)
        for position in range(int(count)):
            api.embed_txt(queue, [5], [position], embeds)
            api.forward(queue, page, embeds, page, embeds)
            await api.get_next_dist(queue, embeds[0], top_k=1)
        api.close_queue(queue)
    else:
        for _ in range(int(count)):
            await api.send("x")
    await api.send("done")
