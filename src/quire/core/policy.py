"""The order of commands: the protocol of policies, and when messages are sent.

Control notifies a policy of arrivals, service and ends, and reads its keys. ``ready_command`` has
what a policy sees of a command, ``quire.testing.conformance`` the conformance suites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from quire.core.ids import ProgramId
from quire.core.ready_command import GraphPlace, ReadyCommand, ServiceFigures

__all__ = [
    "DispatchPolicy",
    "GraphPlace",
    "Policy",
    "ReadyCommand",
    "ServiceFigures",
    "StagedPolicy",
]


@runtime_checkable
class Policy(Protocol):
    """Decides which commands run and which yield, within one tenant and one priority. Pure
    bookkeeping: no I/O, no clock.

    ``key`` sorts ascending: the smallest runs first, the largest yields first. Its first number is
    the command's *level*: a waiting command displaces a running one only if its level is smaller.
    Where programs have no room in memory together, one that is let in makes way only for a level
    whose whole part is smaller: it computes its context again, which nearly equal ranks are not
    worth. A command that finds no block takes those of running ones by the whole key. The numbers
    after the level order the commands of one level, which never displace one another.
    The priorities of a tenant's programs and the tenants' fair shares take precedence over the key.

    Control keeps commands sorted, so a key may change only in a notification that concerns its
    command: ``on_arrival``, ``on_served``, or an ``on_time`` that returns the command. It must not
    change because of other commands, even those of the same program. A command whose rank depends
    on its program gets the rank on arrival (as in Autellix's queues), or is returned by
    ``on_time``.
    """

    @property
    def name(self) -> str: ...

    @property
    def keeps_state(self) -> bool:
        """Whether the policy wants the notifications. Constant: control reads it once, and if it is
        false saves the calls for each row of each message."""
        ...

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        """The sort key; all keys have one length. Changes no state."""
        ...

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        """Note that the command can be scheduled now. Called once, before its first ``key``."""
        ...

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        """Note that the engine computed ``num_tokens`` for the command in ``service_s`` seconds."""
        ...

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        """Note that the command has ended, in whatever way. Its key is not read again."""
        ...

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        """Note that the program and all of its commands have ended."""
        ...

    def on_capacity(self, num_sequences: int) -> None:
        """Note how many sequences the engines that are up run at once, all together."""
        ...

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        """Take the time before a decision; return the commands whose keys have changed."""
        ...


@runtime_checkable
class StagedPolicy(Policy, Protocol):
    """A policy under which the commands of a program go by stages (Ayo, algorithm 2).

    For each message control takes, of each program, the waiting commands with the program's
    smallest stage; programs by the smallest key of all their waiting commands. Room that is left in
    the message goes to the programs' next stages, and so on. An encoder's batch is such a message,
    and so are the sequences of an engine that are given away at one time. Keys alone decide which
    command gives up memory.
    """

    def stage(self, command: ReadyCommand) -> float:
        """The command's stage. Called once, after ``on_arrival``; it never changes."""
        ...


@runtime_checkable
class DispatchPolicy(Protocol):
    """Decides *when* a batch is sent (Pie 5.2, Table 5); the policy decides *what* is in it."""

    @property
    def name(self) -> str: ...

    @property
    def max_commands(self) -> int | None:
        """The most commands in one message (``eager``: 1)."""
        ...

    @property
    def is_adaptive(self) -> bool:
        """Whether the scheduler may wait for programs that are likely to continue soon."""
        ...

    def ready_at_s(self, num_ready: int, oldest_ready_s: float, now_s: float) -> float | None:
        """When to dispatch: ``now_s`` or earlier means at once, later sets a timer, None waits for
        more commands. Asked while the engine is idle and ``num_ready`` commands, at least one, are
        ready."""
        ...
