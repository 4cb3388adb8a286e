"""The order of commands: the protocol of policies, what they see, and when messages are sent.

Control tells a policy of arrivals, service and ends, and asks it for keys; it alone writes the
figures. Conformance suites stand in ``quire.testing.conformance``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from quire.core.ids import CommandId, ProgramId, QueueId, TenantId, ThreadId


@dataclass(slots=True)
class ServiceFigures:
    """The figures of one program, of one of its threads, or of a family, as policies read them.

    Control alone writes them. ``service_s`` and ``service_tokens``: engine time and tokens, prompts
    and recomputation included. ``generated_tokens``: of a family, what it has generated of them.
    ``path_s`` and ``path_tokens``: the longest critical path so far,
    which is the most service that stood one call behind the other (Autellix 4.2.1; kept for
    programs and families, not for threads). ``waiting_s``: time in which it could have run and did
    not. ``arrival_s``: when it began, for a thread when its first queue was created.
    ``completion_s``: when its last call ended. ``parent``: the program that launched it, or the
    thread that it was forked from; ``parent_thread``: the thread of that program that launched it.
    ``deadline_s``: the time by which its caller wants it done.
    """

    arrival_s: float = 0.0
    service_s: float = 0.0
    service_tokens: int = 0
    generated_tokens: int = 0
    path_s: float = 0.0
    path_tokens: int = 0
    waiting_s: float = 0.0
    completion_s: float | None = None
    parent: int | None = None
    parent_thread: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class GraphPlace:
    """Which step of its program's graph a command serves (Ayo 5.2).

    ``depth``: the most steps from here to a result, 0 for a result and for programs that have no
    graph. ``invocation``: the number of the step within its program; 0: each command is one of its
    own. ``remaining_us``: microseconds from its beginning to the result, by profile; 0 if unknown.
    """

    depth: int = 0
    invocation: int = 0
    remaining_us: int = 0


class ReadyCommand(msgspec.Struct, kw_only=True, gc=False):
    """What a policy may know of a command (or running decode) that could be scheduled now.

    One object for the command's whole life: control keeps it up to date, a policy only reads it and
    may keep it. ``family_figures``, ``program_figures`` and ``thread_figures`` are live too, and
    shared by all commands of the family, the program and the thread. A family is a root program
    with all programs below it, those that have ended included; ``family`` is the root, ``kind``
    what programs like it are called (the root's program's name; of a session what its client
    says, "" if nothing).
    ``depth``, ``invocation`` and ``remaining_us``: its ``GraphPlace``, which never changes.
    ``arrival_s``: when it was issued.
    ``ready_s``: when it became schedulable, or was last served. ``service_tokens`` and
    ``service_s`` count what the engine has done for it so far; ``path_tokens`` and ``path_s``: its
    program's critical path when it arrived, which it continues.
    """

    program: ProgramId
    tenant: TenantId
    thread: ThreadId = ThreadId(0)
    queue: QueueId
    command: CommandId
    priority: int
    depth: int
    arrival_s: float
    ready_s: float
    service_tokens: int
    num_tokens_next: int
    service_s: float = 0.0
    path_tokens: int = 0
    path_s: float = 0.0
    family: ProgramId
    kind: str = ""
    invocation: int = 0
    remaining_us: int = 0
    family_figures: ServiceFigures
    program_figures: ServiceFigures
    thread_figures: ServiceFigures


@runtime_checkable
class Policy(Protocol):
    """Decides who runs and who yields, within one tenant and one priority. Pure bookkeeping: no
    I/O, no clock.

    ``key`` sorts ascending: the smallest runs first, the largest yields first. Its first number is
    the command's *level*: a waiting command displaces a running one only if its level is smaller.
    The numbers after the level order the commands of one level, which never displace one another.
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
        """Whether the policy wants the notifications. Constant: control asks once, and saves the
        calls for each row of each message if not."""
        ...

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        """The sort key; all keys have one length. Changes no state."""
        ...

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        """The command can be scheduled from now on. Called once, before its first ``key``."""
        ...

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        """The engine has computed ``num_tokens`` for the command in ``service_s`` seconds."""
        ...

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        """The command has ended, in whatever way. Its key is not asked for again."""
        ...

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        """The program and all of its commands have ended."""
        ...

    def on_capacity(self, num_sequences: int) -> None:
        """The engines that are up run so many sequences at once, all together."""
        ...

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        """Called before every decision. Returns the commands whose keys have changed."""
        ...


@runtime_checkable
class StagedPolicy(Policy, Protocol):
    """A policy under which the commands of a program go by stages (Ayo, algorithm 2).

    For each message control takes, of each program, the commands that wait with the program's
    smallest stage; programs by the smallest key of all their commands that wait. What is left of
    the message goes to the programs' next stages, and so on. An encoder's batch is such a message,
    and so are the sequences of an engine that are given away at one time. Who gives up memory is
    decided by keys alone.
    """

    def stage(self, command: ReadyCommand) -> float:
        """Asked once, behind ``on_arrival``; it never changes."""
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

    def ready_at_s(
        self, num_ready: int, oldest_ready_s: float, num_in_flight: int, now_s: float
    ) -> float | None:
        """When to dispatch: ``now_s`` or earlier means at once, later sets a timer, None waits."""
        ...
