"""Runs completions on a node without HTTP, as one program of that node: the baseline of streaming.

Self-contained, because the node gets this file's text. All prompts at once, each on its own queue.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

from quire.core.decoding import StopSpec
from quire.programs.api import Api
from quire.programs.sdk import inferlet

SEEN_TOKENS = 16
CHUNK_TOKENS = 64


async def decode(api: Api, prompt: list[int], num_tokens: int) -> int:
    """Decode greedily; return the number of tokens."""
    queue = api.create_queue()
    pages = api.alloc_kvpage(queue, -(-(len(prompt) + num_tokens) // queue.page_size))
    stop = StopSpec(max_tokens=num_tokens)
    count = 0
    async for chunk in api.decode(queue, [], prompt, pages, position=0, stop=stop, cache=False):
        count += len(chunk.token_ids)
    return count


async def take_steps(api: Api, prompt: list[int], num_tokens: int) -> int:
    """Do the same with the program taking every step, as in ``step_program.py``."""
    end = len(prompt) + num_tokens
    queue = api.create_queue()
    embeds = api.alloc_emb(queue, min(CHUNK_TOKENS, len(prompt)))
    pages = api.alloc_kvpage(queue, -(-end // queue.page_size))
    last = embeds[-1]
    for start in range(0, len(prompt), CHUNK_TOKENS):
        chunk = prompt[start : start + CHUNK_TOKENS]
        used = embeds[-len(chunk) :]
        api.embed_txt(queue, chunk, list(range(start, start + len(chunk))), used)
        api.forward(queue, pages if start else [], used, pages, last)
    for position in range(len(prompt), end):
        token = (await api.get_next_dist(queue, last, top_k=SEEN_TOKENS)).max_index()
        if position + 1 < end:
            api.embed_txt(queue, token, position, last)
            api.forward(queue, pages, last, pages, last)
    return num_tokens


@inferlet("offline")
async def offline(api: Api, plan_json: str) -> dict[str, float]:
    """Complete as many prompts as ``plan_json`` says: ``seed``, ``vocab_size``, ``count``; tokens
    per request: ``prompt``, ``output``; ``every_step``: whether the program takes every step
    itself."""
    plan: dict[str, Any] = json.loads(plan_json)
    numbers = random.Random(plan["seed"])
    prompts = [
        numbers.choices(range(3, plan["vocab_size"]), k=plan["prompt"])
        for _ in range(plan["count"])
    ]
    began_s = time.perf_counter()
    complete = take_steps if plan["every_step"] else decode
    counts = await asyncio.gather(*(complete(api, prompt, plan["output"]) for prompt in prompts))
    return {"num_tokens": sum(counts), "total_s": time.perf_counter() - began_s}
