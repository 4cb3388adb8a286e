"""The requests to one service of the node, such as a store, in the order of a policy.

Owns what waits and what goes next: tenants by their share in requests, within one by priority and
the policy, with its stages if it has some. For services that take batches of requests and know no
more of a command than ``ReadyCommand`` has: engines and encoders have schedulers of their own over
the same buckets and shares. Does no I/O and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.control.scheduler.order.buckets import Buckets, Rank
from quire.control.scheduler.order.fairness import FairShare
from quire.core.ids import CommandId, ProgramId, TenantId
from quire.core.policy import Policy, ReadyCommand, StagedPolicy


class _Waiting:
    """A request with its place."""

    __slots__ = ("command", "number", "rank", "stage")

    def __init__(self, command: ReadyCommand, number: int) -> None:
        self.command = command
        self.number = number
        self.rank: Rank = ()
        self.stage = 0.0


class RequestOrder:
    """The waiting requests of one service. A request is ``add``-ed once, taken by ``take`` and
    ``end``-ed when it is answered, or ended without having been taken. ``policy`` belongs to this
    order alone.

    What a service does not know of a command (its program's service) stays 0 in its figures:
    policies that rank by service then order by arrival.
    """

    def __init__(self, policy: Policy, weights: Mapping[TenantId, float]) -> None:
        self._policy = policy
        self._stages = policy if isinstance(policy, StagedPolicy) else None
        self._share = FairShare(weights)
        self._lines: dict[TenantId, Buckets[_Waiting]] = {}
        self._waiting: dict[tuple[ProgramId, CommandId], _Waiting] = {}
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, command: ReadyCommand, now_s: float) -> None:
        """Add ``command``, which waits from now on."""
        self._num_added += 1
        one = _Waiting(command, self._num_added)
        self._policy.on_arrival(command, now_s)
        if self._stages is not None:
            one.stage = self._stages.stage(command)
        self._waiting[command.program, command.command] = one
        self._stand(one)

    def _stand(self, one: _Waiting) -> None:
        command = one.command
        one.rank = (-command.priority, *self._policy.key(command), one.number)
        line = self._lines.get(command.tenant)
        if line is None:
            line = self._lines[command.tenant] = Buckets()
            self._share.enter(command.tenant)
        line.add(one, one.rank, one.stage, command.program)

    def take(self, max_requests: int, now_s: float) -> list[ReadyCommand]:
        """Take the next batch of at most ``max_requests``."""
        self._tell_time(now_s)
        self._share.advance(self._lines)
        for line in self._lines.values():
            line.begin()
        batch: list[ReadyCommand] = []
        while self._lines and len(batch) < max_requests:
            tenant = min(self._lines, key=self._share.start)
            one = self._lines[tenant].first()
            assert one is not None, "an empty line is kept"
            command = one.command
            self._lines[tenant].take(one.rank, one.stage, command.program)
            self._leave(one)
            self._share.charge(tenant, 1)
            batch.append(command)
        return batch

    def _tell_time(self, now_s: float) -> None:
        for command in self._policy.on_time(now_s):
            one = self._waiting.get((command.program, command.command))
            if one is not None:
                self._lines[command.tenant].remove(one.rank, one.stage, command.program)
                self._stand(one)

    def _leave(self, one: _Waiting) -> None:
        command = one.command
        del self._waiting[command.program, command.command]
        if not len(self._lines[command.tenant]):
            del self._lines[command.tenant]

    def end(self, command: ReadyCommand, now_s: float) -> None:
        """End ``command``, which is answered or no longer wanted."""
        one = self._waiting.get((command.program, command.command))
        if one is not None:
            self._lines[command.tenant].remove(one.rank, one.stage, command.program)
            self._leave(one)
        self._policy.on_ended(command, now_s)

    def end_program(self, program: ProgramId, now_s: float) -> None:
        """Note that ``program`` has ended, after all of its commands."""
        self._policy.on_program_ended(program, now_s)

    def check_invariants(self) -> None:
        for line in self._lines.values():
            line.check_invariants()
            assert len(line), "an empty line is kept"
        assert sum([len(line) for line in self._lines.values()]) == len(self._waiting)
