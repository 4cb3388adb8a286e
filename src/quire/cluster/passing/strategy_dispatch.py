"""Finds an answer for a request by the router's strategy.

Owns how often the strategy is asked, and what its failures mean for the request and for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from quire.cluster.engines.interfaces import Engine, Idle
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.engines.strategy_errors import is_ending, line_within, said_of
from quire.cluster.engines.trial import why_no_answer
from quire.cluster.passing.answer_tries import AnswerTries
from quire.cluster.passing.candidates import EngineCandidates
from quire.cluster.passing.failover import Failover
from quire.cluster.passing.in_order import InOrder
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.passing.tool_calls import ToolCalls
from quire.cluster.requests.request import Request
from quire.cluster.routing.interrupting import StrategyInterrupted, was_interrupted
from quire.cluster.routing.running import RunningStrategy, StrategyTerm
from quire.core.errors import (
    CapacityError,
    EngineLost,
    ProgramFailed,
    QuireError,
    TransferFailed,
)

logger = logging.getLogger(__name__)

_KEPT_WAITING = "it has kept all requests waiting, and was interrupted"


class StrategyFailed(ProgramFailed):
    """The strategy's own exception, or a result that is no answer."""

    code = "strategy_failed"


class StrategyDispatch:
    """Has ``strategy`` choose among the candidates."""

    def __init__(
        self,
        strategy: RunningStrategy,
        candidates: EngineCandidates,
        failover: Failover,
        in_order: InOrder,
    ) -> None:
        self._tool_calls = ToolCalls()
        self._strategy = strategy
        self._candidates = candidates
        self._failover = failover
        self._in_order = in_order

    @property
    def routes_sessions(self) -> bool:
        """Whether the strategy chooses for the requests of sessions, too."""
        return self._strategy.current.strategy.routes_sessions

    async def open(self, request: Request) -> OpenedAnswer:
        """Try until an answer begins, without the engines that were lost or take nothing now."""
        refused: OpenedAnswer | None = None
        tries = AnswerTries()
        while tries.left and (engines := self._candidates.worth_asking(request)):
            with self._strategy.request() as shift:
                opened = await self._routed(request, shift, engines)
            if opened is None:
                tries.failed()
            else:
                refused = opened
                if not self._candidates.leaves_to_others(request, opened):
                    if shift.strategy.idle is None:
                        return opened
                    idle = partial(self._idle, shift, shift.strategy.idle)
                    return self._tool_calls.watched(opened, request, idle, engines)
                tries.refused_by(opened.answer.engine)
        if refused is None:
            raise self._candidates.nobody(request)
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
            return await self._failover.opened(request, answer)
        except EngineLost:
            self._candidates.note_lost(request)
            if not request.work.lost:
                raise
            return None
        except (TransferFailed, CapacityError) as exc:
            # a link was lost between two nodes that live, or one of them takes none of the calls
            if isinstance(exc, CapacityError) and not request.work.full:
                raise  # the strategy itself refuses the request
            logger.warning("request %s is not divided: %s", request.request_id, exc.message)
            request.work.end()
            return await self._in_order.open(request, self._candidates.left(request))
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
