"""What comes out of the controller: the shell carries these out, in order."""

from __future__ import annotations

import msgspec

from quire.core.batch import Batch
from quire.core.commands import AttentionScores, Dists, Exports, Imported, Sampled
from quire.core.decoding import DecodeChunk
from quire.core.errors import ErrorRecord
from quire.core.events import ProgramForm
from quire.core.ids import CommandId, EngineId, ProgramId, QueueId

Reply = None | DecodeChunk | Imported | Exports | Dists | Sampled | AttentionScores
"""``None`` for commands that only finish; see each command for its reply."""


class ActionBase(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    pass


class Dispatch(ActionBase, frozen=True, kw_only=True):
    """Send ``batch`` to ``engine``."""

    engine: EngineId
    batch: Batch


class Deliver(ActionBase, frozen=True, kw_only=True):
    """A reply to a command. ``last`` marks the command's end as *done*.

    ``done_before``: commands of the program that were done before it, in this order, each with
    nothing to say: mostly it is the last of a few whose answer anybody waits for.
    """

    program: ProgramId
    command: CommandId
    reply: Reply = None
    last: bool = True
    done_before: tuple[CommandId, ...] = ()


class Fail(ActionBase, frozen=True, kw_only=True):
    """The command's end as *failed* or (code ``program_cancelled``) *cancelled*."""

    program: ProgramId
    command: CommandId
    error: ErrorRecord


class QueuePlaced(ActionBase, frozen=True, kw_only=True):
    """Control has chosen the engine of a queue, as its first command came."""

    program: ProgramId
    queue: QueueId
    engine: EngineId


class Terminate(ActionBase, frozen=True, kw_only=True):
    """Control ends a program: over its quota, its pages lost, its idle time over.

    Its entry is gone and its commands have been answered; the host must stop it.
    """

    program: ProgramId
    error: ErrorRecord


class ProgramClosed(ActionBase, frozen=True, kw_only=True):
    """A program has left the process table, and this is what it has used.

    ``reason`` is that of its end. What the engine still does for it is not counted any more.
    """

    program: ProgramId
    form: ProgramForm
    reason: str
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    service_s: float
    waiting_s: float


class SetTimer(ActionBase, frozen=True, kw_only=True):
    """Ask for a ``Tick`` at ``at_s``. A later ``SetTimer`` replaces an earlier one."""

    at_s: float


Action = Dispatch | Deliver | Fail | QueuePlaced | Terminate | ProgramClosed | SetTimer
