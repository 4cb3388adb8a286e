"""A greedy completion whose program takes every step and tells its client each token.

Self-contained: the node gets this file's text.
"""

from __future__ import annotations

import json

from quire.programs.api import Api
from quire.programs.sdk import inferlet

SEEN_TOKENS = 16
"""So much of each distribution does the program look at."""


@inferlet("steps")
async def steps(api: Api, prompt_json: str, num_tokens: str) -> int:
    """``prompt_json``: token ids; how many tokens came."""
    prompt: list[int] = json.loads(prompt_json)
    end = len(prompt) + int(num_tokens)
    queue = api.create_queue()
    embeds = api.alloc_emb(queue, len(prompt))
    pages = api.alloc_kvpage(queue, -(-end // queue.page_size))
    api.embed_txt(queue, prompt, list(range(len(prompt))), embeds)
    api.forward(queue, [], embeds, pages, embeds[-1])
    last = embeds[-1]
    for position in range(len(prompt), end):
        token = (await api.get_next_dist(queue, last, top_k=SEEN_TOKENS)).max_index()
        api.send(str(token))
        if position + 1 < end:
            api.embed_txt(queue, token, position, last)
            api.forward(queue, pages, last, pages, last)
    return end - len(prompt)


__all__ = ["steps"]
