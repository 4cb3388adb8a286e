"""Another engine computes a long prompt while the one that is to answer is busy with decoding.

The three calls by hand: ``prep_recv`` makes room at the engine that will answer, ``remote_send``
computes the prompt at another one and brings it there, ``start_generate`` goes on from it. Router
and nodes need the same ``--cluster-key-file``.

    quire router --node http://127.0.0.1:8001 --node http://127.0.0.1:8002 \
        --cluster-key-file cluster.key \
        --strategy examples/cluster/prefill_where_idle.py:PrefillWhereIdle
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.cluster import Engine, Request, RoutedAnswer


@dataclass
class PrefillWhereIdle:
    """``min_tokens``: shorter prompts are computed where they are answered. ``max_load``: with this
    many requests an engine is busy."""

    min_tokens: int = 256
    max_load: int = 4

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        idle, *_, busy = [*sorted(engines, key=lambda engine: engine.load)] * 2
        answering = busy if busy.load <= self.max_load else idle
        if request.prompt is None or answering is idle:
            return await answering.send(request)
        if len(await answering.prompt_tokens(request)) < self.min_tokens:
            return await answering.send(request)
        received = await answering.prep_recv(request, end=-1)
        if received.matched_len < received.end:
            await idle.remote_send(request, received, begin=received.matched_len, end=received.end)
        return await answering.start_generate(request, received.end, received=received)
