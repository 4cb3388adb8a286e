"""Chooses the engine with the fewest unfinished requests."""

from __future__ import annotations

from collections.abc import Sequence

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import least_used_of


async def least_used(request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
    return await least_used_of(engines).send(request)
