"""``RequestTurns``: chooses the request that a service runs next, by the node's policy.

Owns how many requests run at a time, and those that wait. The order is that of control
(``RequestOrder``), as for models and encoders: tenants by their shares, within one by priority and
the policy.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from quire.control.policies import create_policy
from quire.control.scheduler.order.requests import RequestOrder
from quire.core.calls import SPARE_PRIORITY
from quire.core.config import NodeConfig
from quire.core.errors import CapacityError
from quire.core.ids import CommandId, ProgramId, QueueId, TenantId
from quire.core.policy import ReadyCommand, ServiceFigures
from quire.node.loops import call_on
from quire.programs.services.encoding import CallOrder
from quire.programs.services.operations import Identity


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    num_waiting: int
    num_running: int


@dataclass(slots=True)
class _Program:
    """A program that has sent requests: its figures, and its requests that have not ended."""

    figures: ServiceFigures
    num_requests: int = 0
    has_ended: bool = False


@dataclass(slots=True)
class _Waiter:
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.Future())

    def wake(self) -> None:
        call_on(self.loop, self._settle)

    def _settle(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)


class RequestTurns:
    """The requests to one service. For any loop and thread. ``at_once``: how many run at a time."""

    def __init__(self, config: NodeConfig, at_once: int, now_s: Callable[[], float]) -> None:
        policy = create_policy(config.scheduler.policy, config.scheduler.levels)
        weights: Mapping[TenantId, float] = {one.id: one.weight for one in config.tenants}
        self._order = RequestOrder(policy, weights)
        self._at_once, self._now_s = at_once, now_s
        self._waiters: dict[CommandId, _Waiter] = {}
        self._programs: dict[ProgramId, _Program] = {}
        self._num_running = 0
        self._num_requests = 0
        self._lock = threading.Lock()

    def of(self, identity: Identity) -> TurnsOfProgram:
        return TurnsOfProgram(self, identity)

    @asynccontextmanager
    async def turn(self, identity: Identity, order: CallOrder) -> AsyncIterator[None]:
        """See ``ProgramTurns``. A spare request has a turn at once or not at all, because a request
        that runs cannot be displaced.

        Raises:
            CapacityError: a spare request while nothing is to spare.
        """
        waiter = _Waiter()
        with self._lock:
            if order.priority <= SPARE_PRIORITY:
                self._check_spare()
            command = self._arrived(identity, order)
            self._waiters[command.command] = waiter
            next_ones = self._next()
        _wake(next_ones)
        try:
            await waiter.turn
            yield
        finally:
            with self._lock:
                self._ended(command)
                next_ones = self._next()
            _wake(next_ones)

    def end(self, program: ProgramId) -> None:
        """Note that ``program`` sends no more requests."""
        with self._lock:
            known = self._programs.get(program)
            if known is not None:
                known.has_ended = True
                self._forget(program)

    # -- under the lock ----------------------------------------------------------------------------

    def _arrived(self, identity: Identity, order: CallOrder) -> ReadyCommand:
        now_s = self._now_s()
        program = self._programs.get(identity.program)
        if program is None:
            program = self._programs[identity.program] = _Program(ServiceFigures(arrival_s=now_s))
        program.num_requests += 1
        self._num_requests += 1
        command = ReadyCommand(
            program=identity.program,
            tenant=identity.tenant,
            thread=order.thread,
            queue=QueueId(0),
            command=CommandId(self._num_requests),
            priority=order.priority,
            depth=order.depth,
            arrival_s=now_s,
            ready_s=now_s,
            service_tokens=0,
            num_tokens_next=1,
            family=identity.program,
            kind=identity.name,
            invocation=order.invocation,
            remaining_us=order.remaining_us,
            family_figures=program.figures,
            program_figures=program.figures,
            thread_figures=program.figures,
        )
        self._order.add(command, now_s)
        return command

    def _check_spare(self) -> None:
        """Refuse a spare request unless one turn stays free for other requests."""
        if len(self._order) or self._num_running >= max(1, self._at_once - 1):
            raise CapacityError(
                "nothing is to spare: of the requests that are carried out at a time "
                f"{self._num_running} of {self._at_once} are, and {len(self._order)} wait: try "
                "again later, or with a higher priority"
            )

    def _next(self) -> Sequence[_Waiter]:
        """The requests that may run now."""
        taken = self._order.take(self._at_once - self._num_running, self._now_s())
        self._num_running += len(taken)
        return [self._waiters.pop(command.command) for command in taken]

    def _ended(self, command: ReadyCommand) -> None:
        had_its_turn = self._waiters.pop(command.command, None) is None
        self._num_running -= had_its_turn
        self._order.end(command, self._now_s())
        self._programs[command.program].num_requests -= 1
        self._forget(command.program)

    def _forget(self, program: ProgramId) -> None:
        known = self._programs[program]
        if known.has_ended and not known.num_requests:
            del self._programs[program]
            self._order.end_program(program, self._now_s())

    # -- views -------------------------------------------------------------------------------------

    def statistics(self) -> TurnStatistics:
        with self._lock:
            return TurnStatistics(len(self._order), self._num_running)

    def check_invariants(self) -> None:
        with self._lock:
            self._order.check_invariants()
            assert len(self._order) == len(self._waiters), "a request waits without a waiter"
            assert 0 <= self._num_running <= self._at_once, "too many requests have their turn"
            num_requests = sum(one.num_requests for one in self._programs.values())
            assert num_requests >= len(self._waiters) + self._num_running, "an unknown program"


class TurnsOfProgram:
    """``ProgramTurns`` of the program ``identity``."""

    def __init__(self, turns: RequestTurns, identity: Identity) -> None:
        self._turns, self._identity = turns, identity

    def turn(self, order: CallOrder) -> AbstractAsyncContextManager[None]:
        return self._turns.turn(self._identity, order)

    def end(self) -> None:
        self._turns.end(self._identity.program)


def _wake(waiters: Sequence[_Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()
