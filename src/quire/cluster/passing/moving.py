"""Answers that are under way move to another node by choice: their pages go first, while they are
still generated, then the rest.

Owns which answers can move and the order of a move. The pages go to the other node's prefix cache,
and again as long as much is computed meanwhile; then the old stream is cut, and the answer goes on
there as after a loss. Must not know how an answer goes on.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakSet

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.passing.continuations import ContinuationWatcher, Unwatched
from quire.cluster.passing.outliving import OutlivingAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.core.errors import EngineLost, QuireError

logger = logging.getLogger(__name__)

_MAX_AT_ONCE = 8
_MAX_TURNS = 3
_FEW_TOKENS = 8
"""Tokens that the target computes in a step or two, which takes less time than another turn of
sending."""


class AnswerMoves:
    """The movable answers of a router over ``fleet``. ``watcher`` hears what becomes of them."""

    def __init__(self, fleet: Fleet, watcher: ContinuationWatcher | None = None) -> None:
        self._fleet = fleet
        self._watcher = watcher or Unwatched()
        self._running: WeakSet[OutlivingAnswer] = WeakSet()

    def add(self, answer: OutlivingAnswer) -> None:
        answer.watcher = self._watcher
        self._running.add(answer)

    async def empty(self, engine: NodeEngine) -> int:
        """Move what runs at ``engine`` to engines that take work; return how many answers have left
        it. The others run to their end."""
        limit = asyncio.Semaphore(_MAX_AT_ONCE)
        running = [answer for answer in self._running if answer.at == engine.name]

        async def move(answer: OutlivingAnswer) -> bool:
            async with limit:
                others = [one for one in self._fleet.engines if self._may_take(one, answer, engine)]
                if not others:
                    return False
                return await self._move(answer, engine, min(others, key=lambda one: one.load))

        return sum(await asyncio.gather(*map(move, running)))

    async def move(self, answer: RoutedAnswer, source: NodeEngine, target: NodeEngine) -> bool:
        """Move the stream that a strategy has returned as ``answer``; return whether it has left
        ``source``."""
        for one in list(self._running):
            if answer in (one, one.first) and one.at == source.name:
                return self._may_take(target, one, source) and await self._move(one, source, target)
        return False

    @staticmethod
    def _may_take(engine: NodeEngine, answer: OutlivingAnswer, source: NodeEngine) -> bool:
        request = answer.request
        return (
            engine is not source
            and engine.node.takes_work_for(request.model)
            and engine.name not in request.work.lost
        )

    async def _move(self, answer: OutlivingAnswer, source: NodeEngine, target: NodeEngine) -> bool:
        self._watcher.move_began()
        has_left = False
        try:
            has_left = await self._moved(answer, source, target)
        finally:
            if not has_left:  # else the answer tells how it goes on
                self._watcher.continued("move", "stayed", None)
            answer.request.work.end_leases()  # the request may have ended before they existed
        return has_left

    async def _moved(self, answer: OutlivingAnswer, source: NodeEngine, target: NodeEngine) -> bool:
        request = answer.request
        if answer.generated is None:
            return False
        try:
            await self._send_ahead(answer, source, target)
        except EngineLost as exc:  # it stays where it is, or goes on by itself
            logger.warning("request %s does not move: %s", request.request_id, exc)
            return False
        except QuireError as exc:  # the other node computes the prompt again
            logger.warning("request %s moves without its pages: %s", request.request_id, exc)
        if answer.at != source.name or answer.generated is None:
            return False  # it has ended meanwhile, or has gone on elsewhere
        request.prefers = target.name  # it has the pages, and needs no lease for them
        answer.leave()
        return True

    async def _send_ahead(
        self, answer: OutlivingAnswer, source: NodeEngine, target: NodeEngine
    ) -> None:
        request = answer.request
        prompt = answer.prompt
        if prompt is None:
            return
        num_sent = -_FEW_TOKENS - 1
        for _ in range(_MAX_TURNS):
            choices = list(map(list, answer.generated or []))
            num_generated = sum(map(len, choices))
            if num_generated - num_sent <= _FEW_TOKENS:
                return
            num_sent = num_generated
            for generated in choices or [[]]:
                tokens = [*prompt, *generated]
                received = await target.prep_recv(request, len(tokens) - 1, prompt=tokens)
                if (begin := received.matched_len) < received.end:
                    await source.remote_send(
                        request, received, begin=begin, end=received.end, prompt=tokens
                    )
                    await target.settle(request, received)
