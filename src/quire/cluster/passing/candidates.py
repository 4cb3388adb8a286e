"""Which engines a request may reach: those that serve its model, without the ones that it has lost
or that take nothing now.

Owns what a request has learnt of engines. Must not know how one of them is chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.full_engines import FullEngines
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.passing.nobody import nobody
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import QuireError, UnknownHandle


class EngineCandidates:
    """The engines of ``fleet`` that are left for a request."""

    def __init__(self, fleet: Fleet) -> None:
        self._full = FullEngines(lambda: asyncio.get_running_loop().time())
        self._fleet = fleet

    def engine(self, name: str) -> NodeEngine | None:
        """Return the engine of the node ``name``, if the router has it."""
        return self._fleet.named(name)

    def nobody(self, request: Request) -> QuireError:
        """Return the error for a request that no engine answers."""
        return nobody(request, self._fleet.engines)

    def ready(self, request: Request) -> list[NodeEngine]:
        """Return the engines that take work for the request's model and that the request has not
        lost; if none of them is ready, those that have not been probed yet, or that have just lost
        their engine: a request waits there until it is loaded again. If there are none of these
        either, those where it has waited for that already, and which it left for others."""
        work, engines = request.work, self._fleet.engines
        serving = [one for one in engines if one.node.serves(request.model)]
        fitting = [one for one in serving if one.name not in work.lost]
        ready = [one for one in fitting if one.node.takes_work_for(request.model)]
        soon = ready or [one for one in fitting if one.node.may_soon_serve]
        return soon or [one for one in serving if one.may_be_waited_for_again(request)]

    def worth_asking(self, request: Request) -> Sequence[NodeEngine]:
        ready, num_refused = self.ready(request), request.work.num_refused
        return self._full.worth_asking(ready, request.model, num_refused)

    def named(self, name: str) -> NodeEngine:
        engine = self._fleet.named(name)
        if engine is None:
            known = ", ".join(engine.name for engine in self._fleet.engines)
            raise UnknownHandle(f"x-quire-node: no node {name[:100]!a} here: {known}")
        return engine

    def leaves_to_others(self, request: Request, opened: OpenedAnswer) -> bool:
        """Return whether its engine takes nothing now, and others are left to be asked."""
        head, engine = opened.answer.head, opened.answer.engine
        if head.status != HTTPStatus.SERVICE_UNAVAILABLE:
            self._full.takes(engine, request.model)
            return False
        request.work.refused_by(engine)
        self._full.refuses(engine, request.model, head.get(b"retry-after"))
        return bool(self.worth_asking(request))

    def note_lost(self, request: Request) -> None:
        """Note the engine of the answer that was opened last as lost. An answer that moves by
        choice (``request.prefers``) has lost no engine: it may come back to where it was."""
        for answer in request.work.answers:
            engine = self._fleet.named(answer.engine)
            if engine is not None and request.prefers is None:
                engine.lost(request)
        request.work.end()

    def left(self, request: Request) -> list[NodeEngine]:
        """Return the engines where ``request`` may go on, the best first."""
        wanted, request.prefers = request.prefers, None
        full = request.work.full

        def order(engine: NodeEngine) -> tuple[bool, bool, int]:
            return engine.name in full, engine.name != wanted, engine.load

        return sorted(self.ready(request), key=order)
