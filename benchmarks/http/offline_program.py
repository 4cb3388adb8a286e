"""Completions on a node without HTTP, as one program of that node: what streaming is compared with.

Self-contained: the node gets this file's text. All prompts at once, each in a queue of its own.
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


async def complete(api: Api, prompt: list[int], num_tokens: int) -> int:
    """Greedy; how many tokens came."""
    queue = api.create_queue()
    pages = api.alloc_kvpage(queue, -(-(len(prompt) + num_tokens) // queue.page_size))
    stop = StopSpec(max_tokens=num_tokens)
    count = 0
    async for chunk in api.decode(queue, [], prompt, pages, position=0, stop=stop, cache=False):
        count += len(chunk.token_ids)
    return count


@inferlet("offline")
async def offline(api: Api, plan_json: str) -> dict[str, float]:
    """``plan_json``: ``seed``, ``vocab_size``, ``count``; tokens each: ``prompt``, ``output``."""
    plan: dict[str, Any] = json.loads(plan_json)
    numbers = random.Random(plan["seed"])
    prompts = [
        numbers.choices(range(3, plan["vocab_size"]), k=plan["prompt"])
        for _ in range(plan["count"])
    ]
    began_s = time.perf_counter()
    counts = await asyncio.gather(*(complete(api, prompt, plan["output"]) for prompt in prompts))
    return {"num_tokens": sum(counts), "total_s": time.perf_counter() - began_s}


__all__ = ["offline"]
