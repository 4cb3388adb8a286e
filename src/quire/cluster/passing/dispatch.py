"""Finds an answer for a request: by the strategy, at a session's home, or at the node that holds
what the request names.

Owns where each kind of place leads. Must not know the client: what is returned here has not been
delivered.
"""

from __future__ import annotations

from http import HTTPStatus

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.passing.candidates import EngineCandidates
from quire.cluster.passing.failover import Failover
from quire.cluster.passing.in_order import InOrder
from quire.cluster.passing.moving import AnswerMoves
from quire.cluster.passing.opened import OpenedAnswer, unopened
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.passing.strategy_dispatch import StrategyDispatch
from quire.cluster.requests.locating import Locator
from quire.cluster.requests.places import (
    AnyNode,
    HoldingNode,
    LeastBusyNode,
    NamedNode,
    SessionHome,
)
from quire.cluster.requests.rendezvous import by_preference
from quire.cluster.requests.request import Request
from quire.cluster.routing.running import RunningStrategy
from quire.core.errors import EngineLost, QuireError

Answerable = AnyNode | SessionHome | HoldingNode | LeastBusyNode | NamedNode


class Dispatcher:
    """Places requests at engines of ``fleet``. The caller of its methods ends ``request.work``."""

    def __init__(
        self,
        fleet: Fleet,
        strategy: RunningStrategy,
        locator: Locator,
        moves: AnswerMoves,
        rescue: ProgramRescue,
    ) -> None:
        self._candidates = EngineCandidates(fleet)
        self._failover = Failover(self._candidates, moves, rescue)
        self._in_order = InOrder(self._candidates, self._failover)
        self._by_strategy = StrategyDispatch(
            strategy, self._candidates, self._failover, self._in_order
        )
        self._rescue = rescue
        self._locator = locator

    async def open(self, request: Request, place: Answerable) -> OpenedAnswer:
        """Return the answer to ``request``, begun.

        Raises:
            QuireError: no engine can answer it.
        """
        match place:
            case AnyNode():
                return await self._by_strategy.open(request)
            case SessionHome(session):
                return await self._at_home(request, session)
            case HoldingNode():
                return await self._at_holder(request, place)
            case NamedNode(name):
                return await self._at(request, self._candidates.named(name))
            case LeastBusyNode(is_stored):
                return await self._spread(request, is_stored=is_stored)

    async def _at_home(self, request: Request, session: str) -> OpenedAnswer:
        ready = {engine.name: engine for engine in self._candidates.ready(request)}
        homes = by_preference(session, [engine.node for engine in ready.values()])
        if homes:
            request.home = homes[0].name
        if self._by_strategy.routes_sessions:
            return await self._by_strategy.open(request)
        return await self._in_order.open(request, [ready[node.name] for node in homes])

    async def _at_holder(self, request: Request, place: HoldingNode) -> OpenedAnswer:
        self._rescue.check(place.lookups)
        node = await self._locator.find(place.lookups, request.headers)
        engine = None if node is None else self._candidates.engine(node.name)
        if node is not None and engine is not None:
            opened = await self._at(request, engine)
            if opened.answer.head.status != HTTPStatus.NOT_FOUND or request.upload is not None:
                return opened
            return await self._where_it_is_now(request, place, node, opened)
        if place.otherwise is not None:
            return await self._at_home(request, place.otherwise)
        return await self._spread(request, is_stored=True)  # the node refuses it

    async def _where_it_is_now(
        self, request: Request, place: HoldingNode, before: RoutedNode, refused: OpenedAnswer
    ) -> OpenedAnswer:
        """Return the answer of another node, asked once: another router may have moved what is
        asked for away from ``before``, whose answer is ``refused``."""
        try:
            node = await self._locator.find_again(place.lookups, request.headers, before)
        except QuireError:
            refused.answer.close()
            raise
        engine = None if node is None else self._candidates.engine(node.name)
        if engine is None:
            return refused
        refused.answer.close()
        return await self._at(request, engine)

    async def _spread(self, request: Request, *, is_stored: bool) -> OpenedAnswer:
        engines = sorted(self._candidates.ready(request), key=lambda engine: engine.load)
        if not is_stored:
            return await self._in_order.open(request, engines)
        if not engines:
            raise self._candidates.nobody(request)
        return await self._at(request, engines[0])

    async def _at(self, request: Request, engine: NodeEngine) -> OpenedAnswer:
        """Ask ``engine`` and no other, once."""
        liveness = engine.node.liveness
        if liveness.is_gone:
            raise EngineLost(
                f"node {engine.name}, which has what was asked for, {liveness.absence}; "
                "try again when it is there"
            )
        return unopened(
            await self._failover.begun(request, await engine.send(request, may_repeat=False))
        )
