"""Engines take turns (the paper's figure 2)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request


class DataParallel:
    """Round robin."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        return await engines[next(self._turns) % len(engines)].send(request)
