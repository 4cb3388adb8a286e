"""Completes the same prompt greedily in four ways, from one command to single steps.

``decode``   one command: the engine's own loop. ``slots``    ``embed_txt``, ``forward``, ``sample``
for each token, issued two steps ahead: a step
             names the previous token by its slot on the device.
``sampled``  the same, but each token is awaited before its successor is issued. ``fine``
``get_next_dist`` in place of ``sample``: the program chooses from the best tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from quire.core.decoding import StopSpec
from quire.programs.api import Api, Embed, KvPage, Queue, Reply

SEEN_TOKENS = 16
"""How many tokens of each distribution a program that chooses itself gets."""

_STEPS_AHEAD = 2


class Loop(Protocol):
    """Continues ``prompt`` by ``num_tokens``; calls ``arrived(count)`` as they become known."""

    def __call__(
        self, api: Api, prompt: list[int], num_tokens: int, arrived: Callable[[int], None]
    ) -> Awaitable[None]: ...


async def decode(
    api: Api, prompt: list[int], num_tokens: int, arrived: Callable[[int], None]
) -> None:
    queue = api.create_queue()
    pages = api.alloc_kvpage(queue, -(-(len(prompt) + num_tokens) // queue.page_size))
    stop = StopSpec(max_tokens=num_tokens)
    async for chunk in api.decode(queue, [], prompt, pages, position=0, stop=stop, cache=False):
        if chunk.token_ids:
            arrived(len(chunk.token_ids))


async def slots(
    api: Api, prompt: list[int], num_tokens: int, arrived: Callable[[int], None]
) -> None:
    queue, pages, last = _prefill(api, prompt, num_tokens)
    (slot,) = api.alloc_token_slot(queue, 1)
    tokens: list[Reply[list[int]]] = [api.sample(queue, last, token_slots=slot)]
    for position in range(len(prompt), len(prompt) + num_tokens - 1):
        api.embed_txt(queue, slot, position, last)
        api.forward(queue, pages, last, pages, last)
        tokens.append(api.sample(queue, last, token_slots=slot))
        if len(tokens) > _STEPS_AHEAD:
            await tokens.pop(0)
            arrived(1)
    for token in tokens:
        await token
        arrived(1)


async def sampled(
    api: Api, prompt: list[int], num_tokens: int, arrived: Callable[[int], None]
) -> None:
    queue, pages, last = _prefill(api, prompt, num_tokens)
    end = len(prompt) + num_tokens
    for position in range(len(prompt), end):
        (token,) = await api.sample(queue, last)
        arrived(1)
        if position + 1 < end:
            api.embed_txt(queue, token, position, last)
            api.forward(queue, pages, last, pages, last)


async def fine(
    api: Api, prompt: list[int], num_tokens: int, arrived: Callable[[int], None]
) -> None:
    queue, pages, last = _prefill(api, prompt, num_tokens)
    end = len(prompt) + num_tokens
    for position in range(len(prompt), end):
        token = (await api.get_next_dist(queue, last, top_k=SEEN_TOKENS)).max_index()
        arrived(1)
        if position + 1 < end:
            api.embed_txt(queue, token, position, last)
            api.forward(queue, pages, last, pages, last)


def _prefill(api: Api, prompt: list[int], num_tokens: int) -> tuple[Queue, list[KvPage], Embed]:
    """The prompt in pages, and the embed after its last token."""
    queue = api.create_queue()
    embeds = api.alloc_emb(queue, len(prompt))
    pages = api.alloc_kvpage(queue, -(-(len(prompt) + num_tokens) // queue.page_size))
    api.embed_txt(queue, prompt, list(range(len(prompt))), embeds)
    api.forward(queue, [], embeds, pages, embeds[-1])
    return queue, pages, embeds[-1]


LOOPS: dict[str, Loop] = {"decode": decode, "slots": slots, "sampled": sampled, "fine": fine}
