"""The records of programs, calls, messages and transfers that control reports, and their listener.

A *call* is a command that needs an engine. Knows no form in which these are shown or sent.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from quire.core.errors import ErrorRecord
from quire.core.events import ProgramStarted
from quire.core.ids import CommandId, EngineId, ModelId, ProgramId, ThreadId

CallOutcome = Literal["done", "failed", "cancelled"]


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call. Times are those of events.

    ``kind``: the command's name, as ``decode``. ``engine``: where its queue is placed; for an
    encoder all of its instances, ``MODEL#*``; None if it was refused before it was placed.
    ``sent_s``: when the first message with it was sent; ``first_token_s``: of a decode.
    ``waiting_s``: time in which it could have run and did not. ``service_s``: engine time of the
    messages that carried it. ``idle_since_s``: the end of its program's last call, if no call was
    under way when this one arrived; else None, as for the first one. ``messages``: the numbers of
    the messages that carried it, as first and last of each run of numbers. ``end_s`` and
    ``outcome`` are None while it is under way.
    """

    program: ProgramId
    command: CommandId
    kind: str
    model: ModelId
    engine: EngineId | None
    thread: ThreadId
    arrival_s: float
    sent_s: float | None
    first_token_s: float | None
    end_s: float | None
    waiting_s: float
    service_s: float
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    idle_since_s: float | None
    messages: tuple[tuple[int, int], ...]
    outcome: CallOutcome | None
    error: ErrorRecord | None = None


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message that an engine has answered. ``number``: counts those for ``engine``, which is
    written as in ``CallRecord``. ``start_s``: when the engine began with it. ``num_commands``: the
    number of commands in it."""

    engine: EngineId
    number: int
    sent_s: float
    start_s: float
    end_s: float
    num_commands: int
    num_tokens: int


class TransferRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Blocks that an engine has copied together to ``tier`` (out), or from there to the device
    (in), for one program; tier ``engine``: whose K and V it has sent to another engine.

    ``program``: the program whose pages moved out, or for which they came back; None for exports
    that no program holds. ``start_s``: when the message that began it was sent. ``is_lost``: the
    engine was lost meanwhile, or the disk failed; the other engine does not have all that was sent.
    ``transport``: what has carried it to the other engine (``kv_transport.carried_by``).
    """

    program: ProgramId | None
    engine: EngineId
    direction: Literal["out", "in"]
    num_blocks: int
    num_bytes: int
    start_s: float
    end_s: float
    is_lost: bool = False
    tier: Literal["host", "disk", "engine"] = "host"
    transport: str = ""


class TraceListener(Protocol):
    """Receives records while control handles the event that causes them. Must be quick, must not
    raise, and must not call control. Calls that a message in flight carries end after their
    program."""

    def program_started(self, started: ProgramStarted) -> None: ...

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None: ...

    def call_ended(self, call: CallRecord) -> None: ...

    def message_ended(self, message: MessageRecord) -> None: ...

    def transfer_ended(self, transfer: TransferRecord) -> None: ...
