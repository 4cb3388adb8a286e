"""The figures of commands, programs and threads that policies see. Control alone writes them.

It writes them for each row of each message, so this module is compiled with control
(``quire.compilation.sources``) and has plain classes, which then are C structures.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.ids import CommandId, ProgramId, QueueId, TenantId, ThreadId

_FIRST_THREAD = ThreadId(0)


@dataclass(slots=True)
class ServiceFigures:
    """The figures of one program, of one of its threads, or of a family, as policies read them.

    Control alone writes them. ``service_s`` and ``service_tokens``: engine time and tokens, prompts
    and recomputation included. ``generated_tokens``: for a family, how many of them it has
    generated. ``path_s`` and ``path_tokens``: the longest critical path so far, which is the most
    service of calls that came one after the other (Autellix 4.2.1; kept for programs and families,
    not for threads). ``waiting_s``: time in which it could have run and did not. ``arrival_s``:
    when it began, for a thread when its first queue was created. ``completion_s``: when its last
    call ended. ``parent``: the program that launched it, or the thread that it was forked from;
    ``parent_thread``: the thread of that program that launched it. ``deadline_s``: the time by
    which its client wants it done.
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
    """The step of its program's graph that a command serves (Ayo 5.2).

    ``depth``: the most steps from here to a result, 0 for a result and for programs that have no
    graph. ``invocation``: the number of the step within its program; 0: each command is one of its
    own. ``remaining_us``: microseconds from its beginning to the result, by profile; 0 if unknown.
    """

    depth: int = 0
    invocation: int = 0
    remaining_us: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class ReadyCommand:
    """The view that a policy has of a command (or running decode) that could be scheduled now.

    One object for the command's whole life, equal to itself alone: control keeps it up to date, a
    policy only reads it and may keep it, also as a key. ``family_figures``, ``program_figures`` and
    ``thread_figures`` are live too, and shared by all commands of the family, the program and the
    thread. A family is a root program with all programs below it, those that have ended included;
    ``family`` is the root, ``kind`` the common name of programs like it (the name of the root's
    program; for a session the name that its client gives, "" if none).
    ``depth``, ``invocation`` and ``remaining_us``: its ``GraphPlace``, which never changes.
    ``arrival_s``: when it was issued.
    ``ready_s``: when it became schedulable, or was last served. ``service_tokens`` and
    ``service_s`` count what the engine has done for it so far; ``path_tokens`` and ``path_s``: its
    program's critical path when it arrived, which it continues. ``is_paused``: its program waits
    outside until memory has room for it.
    """

    program: ProgramId
    tenant: TenantId
    thread: ThreadId = _FIRST_THREAD
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
    is_paused: bool = False
    family_figures: ServiceFigures
    program_figures: ServiceFigures
    thread_figures: ServiceFigures
