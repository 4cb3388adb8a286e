"""Runs Quire as a contender: through a node with its engine process, or the engine alone.

``mode`` of the order: ``decode`` runs one program per prompt that issues one ``decode`` command;
``fine`` runs one program per prompt that chooses from the distribution of every step
(``embed_txt``, ``forward``, ``get_next_dist``); ``engine`` sends the engine its messages directly,
in this process.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fused_loop import FusedLoop
from serving import prepare_interpreter
from worker import Arrived, Prompts, WorkerModel, serve

from quire import __version__
from quire.core.config import EngineConfig, NodeConfig
from quire.core.decoding import StopSpec
from quire.core.ids import ModelId, TenantId
from quire.core.interpreter import settle
from quire.node import Node
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet

_KV_BYTES = 1 << 30
_STEP_MESSAGE_S = 0.005
_SEEN_TOKENS = 16
"""How many tokens of each distribution a program that takes every step gets."""

_TENANT = TenantId("default")


def engine_config(order: dict[str, Any]) -> EngineConfig:
    return EngineConfig(
        source=order["model"],
        name=ModelId("model"),
        dtype="bfloat16",
        kv_cache_bytes=_KV_BYTES,
        host_cache_bytes=0,
        backend=order["backend"],
        weights=order["weights"],
        num_threads=order["num_threads"],
    )


class NodeModel:
    """Programs on a node in this process, whose engine has its own process."""

    version = __version__

    def __init__(self, order: dict[str, Any]) -> None:
        self._program = {"decode": decode, "fine": fine}[order["mode"]]
        self._runner = asyncio.Runner()
        self._node = Node(NodeConfig(engines=(engine_config(order),)))
        prepare_interpreter()
        self._runner.run(self._node.start())
        settle()

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
    """Run the whole loop as one command."""
    queue = api.create_queue()
    page_size = queue.page_size
    pages = api.alloc_kvpage(queue, -(-(len(prompt) + num_tokens) // page_size))
    stop = StopSpec(max_tokens=num_tokens)
    async for chunk in api.decode(queue, [], prompt, pages, position=0, stop=stop, cache=False):
        if chunk.token_ids:
            arrived(index, len(chunk.token_ids))


async def fine(api: Api, prompt: list[int], num_tokens: int, index: int, arrived: Arrived) -> None:
    """Take every step in the program."""
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
    """The engine alone: the cost of a step without control, programs and processes."""

    version = __version__

    def __init__(self, order: dict[str, Any]) -> None:
        from quire.engine.engine import Engine

        engine = Engine(engine_config(order))
        self._loop = FusedLoop(engine.execute, engine.info.pool)

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        self._loop.generate(prompts, num_tokens, arrived, message_s=_STEP_MESSAGE_S)


def load(order: dict[str, Any]) -> WorkerModel:
    return EngineModel(order) if order["mode"] == "engine" else NodeModel(order)


if __name__ == "__main__":
    serve(load)
