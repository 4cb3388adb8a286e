"""Runs the function-calling workflow as a program of the node, with optimisations one by one (Pie
7.2).

Self-contained, because the node gets this file's text. The plan says which specifications a run
needs, in which order, and which of its calls need an answer. ``export``: specifications are modules
at fixed positions, computed by the first agent that needs them and imported by the others (#1).
``concurrent``: a call is sent as soon as it appears in the stream, and the next turn does not wait
for a call that needs no answer (#2). ``drop``: a specification is freed after its call (#3).
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument, UnknownHandle
from quire.programs.api import Api, KvPage, Queue
from quire.programs.sdk import inferlet


def tokens_of(seed: int, count: int, vocab_size: int) -> list[int]:
    return random.Random(seed).choices(range(3, vocab_size), k=count)


class Run:
    """One agent's text as pages: modules, then its own tokens."""

    def __init__(self, api: Api, plan: dict[str, Any]) -> None:
        self.api, self.plan = api, plan
        self.queue: Queue = api.create_queue()
        self.modules: dict[int, list[KvPage]] = {}
        self.own: list[KvPage] = []
        self.position = 0

    def tokens(self, part: dict[str, int]) -> list[int]:
        return tokens_of(part["seed"], part["count"], self.plan["vocab_size"])

    async def begin(self) -> list[int]:
        """Return the tokens to continue with: the question, preceded by everything that is not in
        modules."""
        parts = [self.plan["system"], *self.plan["specifications"]]
        question = self.tokens(self.plan["question"])
        if not self.plan["export"]:
            return [token for part in parts for token in self.tokens(part)] + question
        for part in parts:
            self.modules[part["seed"]] = await self.module(part)
        self.position = self.plan["schema_end"]
        return question

    async def module(self, part: dict[str, int]) -> list[KvPage]:
        """Return the pages of ``part`` at its place in the schema, computed by the first agent that
        needs them."""
        api, queue = self.api, self.queue
        name = f"specification/{part['seed']}"
        try:
            return await api.import_kvpage(queue, name)
        except UnknownHandle:
            api.reset_queue(queue)
        tokens = self.tokens(part)
        embeds = api.alloc_emb(queue, len(tokens))
        pages = api.alloc_kvpage(queue, -(-len(tokens) // queue.page_size))
        start = part["position"]
        api.embed_txt(queue, tokens, range(start, start + len(tokens)), embeds)
        api.forward(queue, [], embeds, pages)
        api.dealloc_emb(queue, embeds)
        try:
            await api.export_kvpage(queue, pages, name)
        except InvalidArgument:  # another agent was faster
            api.reset_queue(queue)
        return pages

    async def write(self, tokens: list[int], called: asyncio.Event) -> int:
        """Run ``tokens`` and write one turn; ``called`` is set when its call can be read. Returns
        the last token, which has not been run."""
        plan, api = self.plan, self.api
        num_new = len(tokens) + plan["turn_tokens"]
        free = sum(page.size - (page.fill or 0) for page in self.own)
        if free < num_new:
            self.own += api.alloc_kvpage(self.queue, -(-(num_new - free) // self.queue.page_size))
        context = [page for pages in self.modules.values() for page in pages]
        stream = api.decode(
            self.queue,
            [*context, *(page for page in self.own if page.fill)],
            tokens,
            [page for page in self.own if page.fill != page.size],
            position=self.position,
            stop=StopSpec(max_tokens=plan["turn_tokens"]),
            cache=not plan["export"],
        )
        written: list[int] = []
        async for chunk in stream:
            written += chunk.token_ids
            if len(written) >= plan["call_tokens"]:
                called.set()
        self.position += len(tokens) + len(written) - 1
        return written[-1]

    def drop(self, part: dict[str, int]) -> None:
        if self.plan["drop"] and (pages := self.modules.pop(part["seed"], None)):
            self.api.dealloc_kvpage(self.queue, pages)


@inferlet("function_calls")
async def function_calls(api: Api, plan_json: str) -> int:
    """Run the plan; returns the number of turns."""
    plan = json.loads(plan_json)
    run = Run(api, plan)
    tokens = await run.begin()
    sent: list[asyncio.Task[Any]] = []
    for part, is_wanted in zip(plan["specifications"], plan["wanted"], strict=True):
        called = asyncio.Event()

        async def call(called: asyncio.Event = called) -> str:
            await called.wait()
            return await api.http_post(plan["service"], "{}")

        task = asyncio.create_task(call()) if plan["concurrent"] else None
        last = await run.write(tokens, called)
        if task is None:
            await call()
        elif is_wanted:
            await task
        else:
            sent.append(task)
        run.drop(part)
        tokens = [last, *tokens_of(part["seed"] + 1, plan["answer_tokens"], plan["vocab_size"])]
    await run.write(tokens, asyncio.Event())
    await asyncio.gather(*sent)
    return len(plan["specifications"]) + 1
