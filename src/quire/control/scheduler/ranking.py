"""The order of commands: queue priority, then the policy's key.

Owns the view of a command that a policy gets. The tenants' share, which stands between the two, is
applied by ``fairness`` over groups of equal priority.
"""

from __future__ import annotations

from quire.control.programs.program import Entry
from quire.core.interfaces import Policy, ReadyCommand

Rank = tuple[float, ...]


def priority_of(entry: Entry) -> int:
    """Higher runs first."""
    return entry.program.priority + entry.queue.priority


def ready_command(entry: Entry) -> ReadyCommand:
    return ReadyCommand(
        program=entry.program.id,
        tenant=entry.program.tenant,
        queue=entry.queue.id,
        command=entry.id,
        priority=priority_of(entry),
        depth=entry.queue.depth,
        arrival_s=entry.arrival_s,
        ready_s=entry.ready_s,
        service_tokens=entry.service_tokens,
        num_tokens_next=entry.num_tokens_next,
    )


class Ranking:
    """Ranks commands under ``policy``; smaller runs first."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now_s = 0.0

    def rank(self, entry: Entry) -> Rank:
        return (-priority_of(entry), *self.key(entry))

    def key(self, entry: Entry) -> Rank:
        return self.policy.key(ready_command(entry), self.now_s)


__all__ = ["Rank", "Ranking", "priority_of", "ready_command"]
