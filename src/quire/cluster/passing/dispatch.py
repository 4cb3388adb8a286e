"""Finds an answer for a request: by the strategy, at a session's home, or at the node that holds
what the request names.

Owns which engines a request may reach and how often it is tried. Must not know the client: what is
returned here has not been delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.full_engines import FullEngines
from quire.cluster.engines.interfaces import Engine, Idle
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.engines.strategy_errors import is_ending, line_within, said_of
from quire.cluster.engines.trial import why_no_answer
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.passing.answer_tries import AnswerTries
from quire.cluster.passing.awaited_launches import AwaitedProgram
from quire.cluster.passing.following import FollowedAnswer, is_of_program
from quire.cluster.passing.moving import AnswerMoves
from quire.cluster.passing.nobody import nobody
from quire.cluster.passing.opened import EVENTS, OpenedAnswer, open_answer, unopened
from quire.cluster.passing.outliving import OutlivingAnswer
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.passing.resuming import ResumingAnswer
from quire.cluster.passing.retelling import RetoldAnswer
from quire.cluster.passing.tool_calls import ToolCalls
from quire.cluster.passing.whole_answers import WholeAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.locating import Locator
from quire.cluster.requests.places import (
    AnyNode,
    HoldingNode,
    LeastBusyNode,
    NamedNode,
    SessionHome,
    program_lookups,
)
from quire.cluster.requests.rendezvous import by_preference
from quire.cluster.requests.request import COMPLETIONS, Request
from quire.cluster.routing.interrupting import StrategyInterrupted, was_interrupted
from quire.cluster.routing.running import RunningStrategy, StrategyTerm
from quire.core.errors import (
    CapacityError,
    EngineLost,
    ProgramFailed,
    QuireError,
    TransferFailed,
    UnknownHandle,
)
from quire.server.answers.resuming.told_tokens import TELLS_HEADER

logger = logging.getLogger(__name__)

_KEPT_WAITING = "it has kept all requests waiting, and was interrupted"

Answerable = AnyNode | SessionHome | HoldingNode | LeastBusyNode | NamedNode


class StrategyFailed(ProgramFailed):
    """The strategy's own exception, or a result that is no answer."""

    code = "strategy_failed"


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
        self._moves = moves
        self._rescue = rescue
        self._tool_calls = ToolCalls()
        self._full = FullEngines(lambda: asyncio.get_running_loop().time())
        self._fleet = fleet
        self._strategy = strategy
        self._locator = locator

    async def open(self, request: Request, place: Answerable) -> OpenedAnswer:
        """Return the answer to ``request``, begun.

        Raises:
            QuireError: no engine can answer it.
        """
        match place:
            case AnyNode():
                return await self._by_strategy(request)
            case SessionHome(session):
                return await self._at_home(request, session)
            case HoldingNode():
                return await self._at_holder(request, place)
            case NamedNode(name):
                return await self._at(request, self._named(name))
            case LeastBusyNode(is_stored):
                return await self._spread(request, is_stored=is_stored)

    # -- by the strategy ---------------------------------------------------------------------------

    async def _by_strategy(self, request: Request) -> OpenedAnswer:
        """Try until an answer begins, without the engines that were lost or take nothing now."""
        refused: OpenedAnswer | None = None
        tries = AnswerTries()
        while tries.left and (engines := self._worth_asking(request)):
            with self._strategy.request() as shift:
                opened = await self._routed(request, shift, engines)
            if opened is None:
                tries.failed()
            else:
                refused = opened
                if not self._leaves_to_others(request, opened):
                    if shift.strategy.idle is None:
                        return opened
                    idle = partial(self._idle, shift, shift.strategy.idle)
                    return self._tool_calls.watched(opened, request, idle, engines)
                tries.refused_by(opened.answer.engine)
        if refused is None:
            raise nobody(request, self._fleet.engines)
        return refused

    async def _routed(
        self, request: Request, shift: StrategyTerm, engines: Sequence[NodeEngine]
    ) -> OpenedAnswer | None:
        """Return the answer that the strategy gives; None if an engine was lost before the answer
        began, or if the strategy was withdrawn."""
        try:
            answer = await shift.strategy.route(request, engines)
            why = why_no_answer(answer)
            if why is not None:
                raise StrategyFailed(f"strategy {shift.strategy.label}: {why}")
            request.work.end(kept=answer)
            return await self._opened(request, answer)
        except EngineLost:
            self._note_lost(request)
            if not request.work.lost:
                raise
            return None
        except (TransferFailed, CapacityError) as exc:
            # a link was lost between two nodes that live, or one of them takes none of the calls
            if isinstance(exc, CapacityError) and not request.work.full:
                raise  # the strategy itself refuses the request
            logger.warning("request %s is not divided: %s", request.request_id, exc.message)
            request.work.end()
            return await self._in_order(request, self._left(request))
        except StrategyFailed:
            shift.num_failed += 1
            raise
        except QuireError:  # an engine refuses the request, or the strategy does
            raise
        except BaseException as exc:  # it may raise anything: SystemExit would end the router
            if is_ending(exc):
                raise
            shift.num_failed += 1
            if was_interrupted(exc):
                self._interrupted(request, shift)
                return None
            label, line = shift.strategy.label, line_within(exc, shift.strategy.filename)
            logger.exception("request %s: strategy %s has failed", request.request_id, label)
            where = "" if line is None else f" (line {line})"
            raise StrategyFailed(
                f"strategy {label} has failed for this request: {said_of(exc)}{where}"
            ) from exc

    def _interrupted(self, request: Request, shift: StrategyTerm) -> None:
        """Withdraw the interrupted strategy, so that the one before it routes the request; raise if
        there is none before it."""
        request.work.end()
        if not self._strategy.withdraw(shift, _KEPT_WAITING):
            label = shift.strategy.label
            raise StrategyInterrupted(f"strategy {label}: {_KEPT_WAITING}; try again")

    async def _idle(
        self, shift: StrategyTerm, idle: Idle, request: Request, engines: Sequence[Engine]
    ) -> None:
        try:
            await idle(request, engines)
        except BaseException as exc:
            if was_interrupted(exc):
                self._strategy.withdraw(shift, _KEPT_WAITING)
            raise

    # -- at a certain engine -----------------------------------------------------------------------

    async def _at_home(self, request: Request, session: str) -> OpenedAnswer:
        ready = {engine.name: engine for engine in self._ready(request)}
        homes = by_preference(session, [engine.node for engine in ready.values()])
        if homes:
            request.home = homes[0].name
        if self._strategy.current.strategy.routes_sessions:
            return await self._by_strategy(request)
        return await self._in_order(request, [ready[node.name] for node in homes])

    async def _in_order(self, request: Request, engines: Sequence[NodeEngine]) -> OpenedAnswer:
        """Return the answer of the first of ``engines`` that begins one; if none does, of an engine
        that is left then."""
        refused: OpenedAnswer | None = None
        waiting = deque(engines)
        tries = AnswerTries()
        while tries.left and (waiting := waiting or deque(self._left(request))):
            engine = waiting.popleft()
            try:
                opened = await self._opened(request, await engine.send(request))
            except EngineLost:
                self._note_lost(request)
                tries.failed()
                continue
            refused = opened
            if not self._leaves_to_others(request, opened):
                return opened
            tries.refused_by(engine.name)
        if refused is None:
            raise nobody(request, self._fleet.engines)
        return refused

    async def _at_holder(self, request: Request, place: HoldingNode) -> OpenedAnswer:
        self._rescue.check(place.lookups)
        node = await self._locator.find(place.lookups, request.headers)
        engine = None if node is None else self._fleet.named(node.name)
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
        engine = None if node is None else self._fleet.named(node.name)
        if engine is None:
            return refused
        refused.answer.close()
        return await self._at(request, engine)

    async def _spread(self, request: Request, *, is_stored: bool) -> OpenedAnswer:
        engines = sorted(self._ready(request), key=lambda engine: engine.load)
        if not is_stored:
            return await self._in_order(request, engines)
        if not engines:
            raise nobody(request, self._fleet.engines)
        return await self._at(request, engines[0])

    async def _at(self, request: Request, engine: NodeEngine) -> OpenedAnswer:
        """Ask ``engine`` and no other, once."""
        liveness = engine.node.liveness
        if liveness.is_gone:
            raise EngineLost(
                f"node {engine.name}, which has what was asked for, {liveness.absence}; "
                "try again when it is there"
            )
        return unopened(await self._begun(request, await engine.send(request, may_repeat=False)))

    # -- going on elsewhere -----------------------------------------------------------------------

    async def _opened(self, request: Request, answer: RoutedAnswer) -> OpenedAnswer:
        """Return ``answer``, begun, in a form that goes on at another engine where it can."""
        return await open_answer(await self._begun(request, answer))

    async def _begun(self, request: Request, answer: RoutedAnswer) -> RoutedAnswer:
        """Return ``answer``, or in its place one that can go on elsewhere, as soon as its head has
        arrived."""
        answer = self._resuming(request, answer)
        if isinstance(answer, WholeAnswer | AwaitedProgram):
            await answer.arrive()
        return answer

    def _resuming(self, request: Request, answer: RoutedAnswer) -> RoutedAnswer:
        if not answer.head.get(b"content-type").startswith(EVENTS):
            return answer
        if is_of_program(request):
            followed = AwaitedProgram if request.awaits_program else FollowedAnswer
            return followed(answer, request, self._follow)
        if not request.is_resumable:
            return answer
        movable: OutlivingAnswer
        if answer.head.get(TELLS_HEADER.encode()):
            kind = RetoldAnswer if request.streams else WholeAnswer
            movable = kind(answer, request, self._send_on)
        elif request.path == COMPLETIONS:
            movable = ResumingAnswer(answer, request, self._go_on)
        else:
            return answer
        self._moves.add(movable)
        return movable

    async def _follow(self, request: Request, program: str) -> RoutedAnswer:
        """Ask the node that has ``program`` now for its messages."""
        node = await self._rescue.find(program_lookups(program), request.headers)
        engine = None if node is None else self._fleet.named(node.name)
        if engine is None:
            raise UnknownHandle(f"no node has the program {program[:100]!a}")
        answer = await engine.send(request)
        if answer.head.status == HTTPStatus.OK:
            return answer
        answer.close()
        raise UnknownHandle(f"node {engine.name} does not tell the program's messages")

    async def _send_on(self, request: Request) -> RoutedAnswer:
        """Send ``request`` to the least used engine that is left."""
        self._note_lost(request)
        for engine in self._left(request):
            try:
                answer = await engine.send(request)
            except EngineLost:
                continue
            if answer.head.get(TELLS_HEADER.encode()):
                return answer
            answer.close()
        raise nobody(request, self._fleet.engines)

    async def _go_on(self, request: Request, prompt: list[int], num_generated: int) -> RoutedAnswer:
        """Generate after ``prompt`` at the least used engine that is left."""
        self._note_lost(request)
        for engine in self._left(request):
            try:
                answer = await engine.start_generate(
                    request, 0, prompt=prompt, num_generated=num_generated
                )
            except EngineLost:
                continue
            if answer.head.status == HTTPStatus.OK:
                return answer
            answer.close()
        raise nobody(request, self._fleet.engines)

    def _left(self, request: Request) -> list[NodeEngine]:
        """Return the engines where ``request`` may go on, the best first."""
        wanted, request.prefers = request.prefers, None
        full = request.work.full

        def order(engine: NodeEngine) -> tuple[bool, bool, int]:
            return engine.name in full, engine.name != wanted, engine.load

        return sorted(self._ready(request), key=order)

    # -- engines -----------------------------------------------------------------------------------

    def _ready(self, request: Request) -> list[NodeEngine]:
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

    def _worth_asking(self, request: Request) -> Sequence[NodeEngine]:
        ready, num_refused = self._ready(request), request.work.num_refused
        return self._full.worth_asking(ready, request.model, num_refused)

    def _named(self, name: str) -> NodeEngine:
        engine = self._fleet.named(name)
        if engine is None:
            known = ", ".join(engine.name for engine in self._fleet.engines)
            raise UnknownHandle(f"x-quire-node: no node {name[:100]!a} here: {known}")
        return engine

    def _leaves_to_others(self, request: Request, opened: OpenedAnswer) -> bool:
        """Return whether its engine takes nothing now, and others are left to be asked."""
        head, engine = opened.answer.head, opened.answer.engine
        if head.status != HTTPStatus.SERVICE_UNAVAILABLE:
            self._full.takes(engine, request.model)
            return False
        request.work.refused_by(engine)
        self._full.refuses(engine, request.model, head.get(b"retry-after"))
        return bool(self._worth_asking(request))

    def _note_lost(self, request: Request) -> None:
        """Note the engine of the answer that was opened last as lost. An answer that moves by
        choice (``request.prefers``) has lost no engine: it may come back to where it was."""
        for answer in request.work.answers:
            engine = self._fleet.named(answer.engine)
            if engine is not None and request.prefers is None:
                engine.lost(request)
        request.work.end()
