"""Quire as a contender: through a node with its engine process, or the engine alone.

``mode`` of the order: ``decode`` runs one program per prompt that issues one ``decode`` command;
``fine`` runs one program per prompt that looks at the distribution of every step (``embed_txt``,
``forward``, ``get_next_dist``); ``engine`` gives the engine its messages directly, in this process.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from worker import Arrived, Model, Prompts, serve

from quire import __version__
from quire.core.batch import (
    AdvanceRows,
    Batch,
    CloseSequences,
    DropTables,
    ForwardRows,
    OpenSequence,
    WriteTable,
)
from quire.core.config import EngineConfig, NodeConfig
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import ModelId, SequenceId, TableId, TenantId
from quire.node import Node
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet

_KV_BYTES = 1 << 30
_STEP_MESSAGE_S = 0.005
_SEEN_TOKENS = 16
"""So much of each distribution does the program in charge of every step look at."""

_TENANT = TenantId("default")


def engine_config(order: dict[str, Any]) -> EngineConfig:
    return EngineConfig(
        source=order["model"],
        name=ModelId("model"),
        dtype="bfloat16",
        kv_cache_bytes=_KV_BYTES,
        host_cache_bytes=0,
        backend=order["backend"],
        num_threads=order["num_threads"],
    )


class NodeModel:
    """Programs on a node of this process, whose engine has a process of its own."""

    version = __version__

    def __init__(self, order: dict[str, Any]) -> None:
        self._program = {"decode": decode, "fine": fine}[order["mode"]]
        self._runner = asyncio.Runner()
        self._node = Node(NodeConfig(engines=(engine_config(order),)))
        self._runner.run(self._node.start())

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        self._runner.run(self._generate(prompts, num_tokens, arrived))

    async def _generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        handles = []
        for index, prompt in enumerate(prompts):

            async def main(api: Api, index: int = index, prompt: list[int] = prompt) -> None:
                await self._program(api, prompt, num_tokens, index, arrived)

            handles.append(self._node.launch(Inferlet("bench", main), tenant=_TENANT))
        for handle in handles:
            await handle.result()


async def decode(
    api: Api, prompt: list[int], num_tokens: int, index: int, arrived: Arrived
) -> None:
    """The whole loop as one command."""
    queue = api.create_queue()
    page_size = queue.page_size
    pages = api.alloc_kvpage(queue, -(-(len(prompt) + num_tokens) // page_size))
    stop = StopSpec(max_tokens=num_tokens)
    async for chunk in api.decode(queue, [], prompt, pages, position=0, stop=stop, cache=False):
        if chunk.token_ids:
            arrived(index, len(chunk.token_ids))


async def fine(api: Api, prompt: list[int], num_tokens: int, index: int, arrived: Arrived) -> None:
    """Every step in the program's own hands."""
    queue = api.create_queue()
    embeds = api.alloc_emb(queue, len(prompt))
    pages = api.alloc_kvpage(queue, -(-(len(prompt) + num_tokens) // queue.page_size))
    api.embed_txt(queue, prompt, list(range(len(prompt))), embeds)
    api.forward(queue, [], embeds, pages, embeds[-1])
    last = embeds[-1]
    for position in range(len(prompt), len(prompt) + num_tokens):
        token = (await api.get_next_dist(queue, last, top_k=_SEEN_TOKENS)).max_index()
        arrived(index, 1)
        if position + 1 < len(prompt) + num_tokens:
            api.embed_txt(queue, token, position, last)
            api.forward(queue, pages, last, pages, last)


class EngineModel:
    """The engine alone: what a step costs without control, programs and processes around it."""

    version = __version__

    def __init__(self, order: dict[str, Any]) -> None:
        from quire.engine.engine import Engine

        self._engine = Engine(engine_config(order))
        self._page_size = self._engine.info.pool.page_size
        self._max_tokens = self._engine.info.pool.max_batch_tokens
        self._step = 0
        self._step_s = _STEP_MESSAGE_S

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        ids = range(len(prompts))
        for index, prompt in enumerate(prompts):
            self._prefill(index, prompt, num_tokens)
            arrived(index, 1)
        left = num_tokens - 1
        while left:
            num_steps = max(1, min(left, int(_STEP_MESSAGE_S / self._step_s)))
            advance = AdvanceRows(
                sequences=_i32(ids),
                epochs=_i32([1] * len(ids)),
                max_steps=_i32([num_steps] * len(ids)),
            )
            result = self._send(num_steps=num_steps, advance=advance)
            self._step_s = result.elapsed_s / num_steps
            left -= num_steps
            for index in ids:
                arrived(index, num_steps)
        self._send(
            operations=[
                CloseSequences(sequences=[SequenceId(index) for index in ids]),
                DropTables(tables=[TableId(index) for index in ids]),
            ]
        )

    def _send(self, **fields: Any) -> Any:
        result = self._engine.execute(Batch(step=self._step, **fields))
        if result.failures:
            raise RuntimeError(f"the engine reports {result.failures}")
        self._step += 1
        return result

    def _prefill(self, index: int, prompt: list[int], num_tokens: int) -> None:
        """The prompt in chunks as control would send it; the last one samples a token."""
        size, length = self._page_size, len(prompt)
        num_pages = -(-(length + num_tokens) // size)
        blocks = np.arange(num_pages, dtype=np.int32) + index * num_pages
        slots = (blocks[:, None] * size + np.arange(size)).ravel()
        for start in range(0, length, self._max_tokens):
            stop = min(length, start + self._max_tokens)
            written = np.minimum(np.maximum(stop - np.arange(num_pages) * size, 0), size)
            visible = np.array([(1 << int(count)) - 1 for count in written], np.uint64)
            operations: list[Any] = [
                WriteTable(table=TableId(index), start=0, blocks=blocks, visible=visible)
            ]
            if stop == length:
                operations.append(self._sequence(index, prompt, num_pages, num_tokens))
            self._send(operations=operations, forward=_row(index, prompt, start, stop, slots))

    def _sequence(
        self, index: int, prompt: list[int], num_pages: int, num_tokens: int
    ) -> OpenSequence:
        return OpenSequence(
            sequence=SequenceId(index),
            epoch=1,
            table=TableId(index),
            cursor=len(prompt),
            limit=num_pages * self._page_size,
            position=len(prompt),
            sampler=SamplerSpec(),
            stop=StopSpec(max_tokens=num_tokens + 1),
            history=_i32(prompt),
        )


def _row(index: int, prompt: list[int], start: int, stop: int, slots: Any) -> ForwardRows:
    count = stop - start
    return ForwardRows(
        row_starts=_i32([0, count]),
        tables=_i32([index]),
        sequences=_i32([index if stop == len(prompt) else -1]),
        tokens=_i32(prompt[start:stop]),
        embeds=_i32([-1] * count),
        positions=_i32([range(start, stop)]),
        slots=slots[None, start:stop].astype(np.int32),
        outputs=_i32([-1] * count),
    )


def _i32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def load(order: dict[str, Any]) -> Model:
    return EngineModel(order) if order["mode"] == "engine" else NodeModel(order)


if __name__ == "__main__":
    serve(load)
