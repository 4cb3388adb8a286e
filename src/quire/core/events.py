"""What goes into the controller. Every event carries its time; the controller has no clock.

Events are plain data, so that a run can be recorded and replayed (``quire replay``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.core.batch import BatchResult, TransfersEnded
from quire.core.commands import Command
from quire.core.engine_info import EngineInfo
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, EngineId, ModelId, ProgramId, QueueId, TenantId, ThreadId

ProgramForm = Literal["session", "inferlet", "workflow"]


class EventBase(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """``time_s`` is monotonic seconds; it never goes back between two events.

    ``more``: another event of the same moment follows. It is taken in, and what to send is decided
    with the last of them: programs that were woken together stand in one message.
    """

    time_s: float
    more: bool = False


class EngineUp(EventBase, frozen=True, kw_only=True):
    """An engine is ready (for the first time, or again, with empty memory)."""

    engine: EngineId
    model: ModelId
    info: EngineInfo


class EngineDown(EventBase, frozen=True, kw_only=True):
    """An engine is lost; whatever was in flight on it will not be answered."""

    engine: EngineId
    error: ErrorRecord


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one program. ``None``: unbounded.

    Control enforces the first group on every program: of pages, embeds, queues, exports and tokens
    on the sum of the program and those that it has launched, and that they have. The node enforces
    ``max_children`` (living descendants of one that a client launched) and ``max_encoded_tokens``
    (of the program and those that it has launched), the sandbox the last group on its guests,
    ``max_cpu_ms`` also on the sum of the program and those that it has launched.

    A generated token is one that a decode or ``Sample`` has chosen, or a distribution that
    ``GetNextDist`` returns, from which the program chooses by itself: a loop costs the same in
    every form. Prompts are not counted.
    """

    max_pages: int | None = None
    max_exported_pages: int | None = None
    max_embeds: int | None = None
    max_queues: int | None = 16_384
    max_exports: int | None = 4096
    max_generated_tokens: int | None = None
    max_pending_commands: int | None = 10_000
    max_dist_top_k: int = 256

    max_children: int | None = 64
    max_encoded_tokens: int | None = None

    max_cpu_ms: int | None = None
    max_memory_bytes: int | None = None
    max_calls_per_s: int | None = None
    max_outstanding_io: int | None = None


class ProgramStarted(EventBase, frozen=True, kw_only=True):
    """A program enters the process table.

    ``priority``: higher runs first. ``client_id`` is the client's own name for it (a session id).
    ``idle_ttl_s``: the entry ends by itself after so long without a command (sessions).
    ``shares_quotas``: its parent has launched it, and the parent's quotas of pages, embeds and
    tokens hold for both together.
    """

    program: ProgramId
    tenant: TenantId
    form: ProgramForm
    name: str
    client_id: str | None = None
    parent: ProgramId | None = None
    priority: int = 0
    deadline_s: float | None = None
    idle_ttl_s: float | None = None
    quotas: Quotas = Quotas()
    shares_quotas: bool = False


REFUSED = "refused"
"""The reason of a program's end that was entered and then not launched."""

ENGINE_WAS_LOST = "its engine was lost"
"""The reason of an end behind which the program may begin again, under another number."""


class ProgramEnded(EventBase, frozen=True, kw_only=True):
    """A program has ended or is cancelled: what it holds is freed, its commands cancelled."""

    program: ProgramId
    reason: str = "finished"


class QueueCreated(EventBase, frozen=True, kw_only=True):
    """A queue for ``model``; control chooses one of the model's engines when its first command
    comes (``QueuePlaced``).

    ``depth``: the graph depth that the queue serves (Ayo). ``priority``: higher runs first.
    """

    program: ProgramId
    queue: QueueId
    model: ModelId
    thread: ThreadId = ThreadId(0)
    depth: int = 0
    priority: int = 0


class QueuePrioritySet(EventBase, frozen=True, kw_only=True):
    program: ProgramId
    queue: QueueId
    priority: int


class QueueReset(EventBase, frozen=True, kw_only=True):
    """Cancel the queue's commands; clear its poison. What it allocated stays."""

    program: ProgramId
    queue: QueueId


class QueueClosed(EventBase, frozen=True, kw_only=True):
    """Cancel the queue's commands and free everything that was allocated through it."""

    program: ProgramId
    queue: QueueId


class CommandsIssued(EventBase, frozen=True, kw_only=True):
    """Commands for one queue, in order."""

    program: ProgramId
    queue: QueueId
    commands: list[Command]


class CommandCancelled(EventBase, frozen=True, kw_only=True):
    """Cancel one command. A decode in flight ends after its last message; others likewise."""

    program: ProgramId
    command: CommandId


class StepCompleted(EventBase, frozen=True, kw_only=True):
    engine: EngineId
    result: BatchResult


class TransfersCompleted(EventBase, frozen=True, kw_only=True):
    """Moves of KV contents that earlier messages began have ended."""

    engine: EngineId
    ended: TransfersEnded


class Tick(EventBase, frozen=True, kw_only=True):
    """Time has reached a ``SetTimer``; or simply: look again."""


Event = (
    EngineUp
    | EngineDown
    | ProgramStarted
    | ProgramEnded
    | QueueCreated
    | QueuePrioritySet
    | QueueReset
    | QueueClosed
    | CommandsIssued
    | CommandCancelled
    | StepCompleted
    | TransfersCompleted
    | Tick
)
