"""The controller's output: actions that the shell carries out, in order."""

from __future__ import annotations

import msgspec

from quire.core.batch import Batch
from quire.core.commands import AttentionScores, Dists, Exports, Imported, Sampled
from quire.core.decoding import DecodeChunk
from quire.core.encoding import EncodeBatch, Encoded
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, EngineId, ProgramForm, ProgramId, QueueId
from quire.core.lease_commands import Leased, Pinned, Sent

ReplyValue = (
    None
    | DecodeChunk
    | Imported
    | Exports
    | Dists
    | Sampled
    | AttentionScores
    | Encoded
    | Leased
    | Pinned
    | Sent
)
"""``None`` for commands that return no value; each command's docstring names its reply."""


class ActionBase(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    pass


class Dispatch(ActionBase, frozen=True, kw_only=True):
    """Send ``batch`` to ``engine``."""

    engine: EngineId
    batch: Batch | EncodeBatch


class Deliver(ActionBase, frozen=True, kw_only=True):
    """Deliver a reply to a command. ``last`` marks the end of the command as *done*.

    ``done_before``: earlier commands of the program that are done and have no reply value, in
    order. They travel with this reply because a program usually awaits only the last of several
    commands.
    """

    program: ProgramId
    command: CommandId
    reply: ReplyValue = None
    last: bool = True
    done_before: tuple[CommandId, ...] = ()


class Fail(ActionBase, frozen=True, kw_only=True):
    """The command has *failed*, or was *cancelled* (code ``program_cancelled``)."""

    program: ProgramId
    command: CommandId
    error: ErrorRecord


class QueuePlaced(ActionBase, frozen=True, kw_only=True):
    """Control has chosen the engine of a queue: on arrival of the queue's first command, and again
    when its program moves."""

    program: ProgramId
    queue: QueueId
    engine: EngineId


class Terminate(ActionBase, frozen=True, kw_only=True):
    """Control ends a program: it exceeded a quota, lost its pages, or was idle for too long.

    Its table entry is removed and its commands have been answered; the host must stop the program.
    """

    program: ProgramId
    error: ErrorRecord


class ProgramClosed(ActionBase, frozen=True, kw_only=True):
    """A program has left the process table. Carries what it has used.

    ``reason``: why it ended. Engine work that still runs for it is not counted any more.
    """

    program: ProgramId
    form: ProgramForm
    reason: str
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_encoded_tokens: int
    num_preemptions: int
    service_s: float
    waiting_s: float


class SetTimer(ActionBase, frozen=True, kw_only=True):
    """Ask for a ``Tick`` at ``at_s``. A later ``SetTimer`` replaces an earlier one."""

    at_s: float


Action = Dispatch | Deliver | Fail | QueuePlaced | Terminate | ProgramClosed | SetTimer
