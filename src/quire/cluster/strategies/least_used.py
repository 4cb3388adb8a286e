"""The engine with the fewest unfinished requests."""

from __future__ import annotations

from collections.abc import Sequence

from quire.cluster.answer import Answer
from quire.cluster.interfaces import Engine
from quire.cluster.request import Request


async def least_used(request: Request, engines: Sequence[Engine]) -> Answer:
    return await min(engines, key=lambda engine: engine.load).send(request)
