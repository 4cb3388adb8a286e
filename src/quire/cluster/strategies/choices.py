"""Choices of engines that several strategies make."""

from __future__ import annotations

from collections.abc import Sequence

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.request import Request

Life = tuple[str, int]
"""An engine (its name and epoch) until its next restart, which empties its cache."""


def life_of(engine: Engine) -> Life:
    return engine.name, engine.epoch


def least_used_of(engines: Sequence[Engine]) -> Engine:
    """Return the engine with the fewest unfinished requests."""
    return min(engines, key=lambda engine: engine.load)


def decoder_of(request: Request, engines: Sequence[Engine]) -> Engine:
    """Return the home of the request's session if it is among ``engines``, else the least used
    engine."""
    homes = [engine for engine in engines if engine.name == request.home]
    return homes[0] if homes else least_used_of(engines)
