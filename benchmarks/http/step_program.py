"""Completes greedily with a program that takes every step and sends its client each token.

Prompt tokens in the prefix cache are not computed again, as with the node's own completions.
Self-contained, because the node gets this file's text.
"""

from __future__ import annotations

import json

from quire.programs.api import Api
from quire.programs.sdk import inferlet

SEEN_TOKENS = 16
"""How many tokens of each distribution the program gets."""

CHUNK_TOKENS = 64
"""Prompt tokens embedded at a time, because one program must not use all embeds of an engine."""


@inferlet("steps")
async def steps(api: Api, prompt_json: str, num_tokens: str) -> int:
    """Complete the token ids of ``prompt_json``, and return the number of tokens."""
    prompt: list[int] = json.loads(prompt_json)
    end = len(prompt) + int(num_tokens)
    queue = api.create_queue()
    cached = await api.import_prefix(queue, prompt)
    embeds = api.alloc_emb(queue, min(CHUNK_TOKENS, len(prompt) - cached.num_tokens))
    num_pages = -(-end // queue.page_size)
    pages = [*cached.pages, *api.alloc_kvpage(queue, num_pages - len(cached.pages))]
    last = embeds[-1]
    for start in range(cached.num_tokens, len(prompt), CHUNK_TOKENS):
        chunk = prompt[start : start + CHUNK_TOKENS]
        used = embeds[-len(chunk) :]
        api.embed_txt(queue, chunk, list(range(start, start + len(chunk))), used)
        api.forward(queue, pages if start else [], used, pages, last)
    for position in range(len(prompt), end):
        token = (await api.get_next_dist(queue, last, top_k=SEEN_TOKENS)).max_index()
        api.send(str(token))
        if position + 1 < end:
            api.embed_txt(queue, token, position, last)
            api.forward(queue, pages, last, pages, last)
    return end - len(prompt)
