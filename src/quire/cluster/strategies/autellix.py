"""Long prompts stay at the engine of their program, short ones go to the engine with the lowest
load (Autellix, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import decoder_of, least_used_of


@dataclass
class Autellix:
    """``long_chars``: a prompt of at least so many characters is long; 2048 tokens are about 8192
    characters. The engine of a program is the home of its session."""

    long_chars: int = 8192
    routes_sessions = True

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        is_long = len(request.prefix) > self.long_chars
        engine = decoder_of(request, engines) if is_long else least_used_of(engines)
        return await engine.send(request)
