"""Asks engines one after another until one begins an answer.

Owns the order and the number of tries. Must not know why these engines were chosen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.passing.answer_tries import AnswerTries
from quire.cluster.passing.candidates import EngineCandidates
from quire.cluster.passing.failover import Failover
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost


class InOrder:
    """Asks ``candidates``, the given ones first."""

    def __init__(self, candidates: EngineCandidates, failover: Failover) -> None:
        self._candidates = candidates
        self._failover = failover

    async def open(self, request: Request, engines: Sequence[NodeEngine]) -> OpenedAnswer:
        """Return the answer of the first of ``engines`` that begins one; if none does, of an engine
        that is left then."""
        refused: OpenedAnswer | None = None
        waiting = deque(engines)
        tries = AnswerTries()
        while tries.left and (waiting := waiting or deque(self._candidates.left(request))):
            engine = waiting.popleft()
            try:
                opened = await self._failover.opened(request, await engine.send(request))
            except EngineLost:
                self._candidates.note_lost(request)
                tries.failed()
                continue
            refused = opened
            if not self._candidates.leaves_to_others(request, opened):
                return opened
            tries.refused_by(engine.name)
        if refused is None:
            raise self._candidates.nobody(request)
        return refused
