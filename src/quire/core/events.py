"""The controller's input. Every event carries its time; the controller has no clock.

Events are plain data, so that a run can be recorded and replayed (``quire replay``).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quire.core.batch_result import BatchResult, TransfersEnded
from quire.core.calls import ControlCall
from quire.core.encoding import EncodeResult, EncoderInfo
from quire.core.engine_info import EngineInfo
from quire.core.errors import ErrorRecord
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.ids import EngineId, ModelId, ProgramForm, ProgramId, TenantId, ThreadId
from quire.core.quotas import Quotas


class EventBase(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """``time_s`` is monotonic seconds; it never goes back between two events.

    ``more``: another event with the same time follows. The controller decides what to send only at
    the last of them, so that programs that woke together share one message.
    """

    time_s: float
    more: bool = False


class EngineUp(EventBase, frozen=True, kw_only=True):
    """An engine is ready, for the first time or again with empty memory, or an encoder is."""

    engine: EngineId
    model: ModelId
    info: EngineInfo | EncoderInfo


class EngineDown(EventBase, frozen=True, kw_only=True):
    """An engine is lost; its messages in flight will not be answered."""

    engine: EngineId
    error: ErrorRecord


class EngineGivenUp(EventBase, frozen=True, kw_only=True):
    """An engine or an encoder will not be started again."""

    engine: EngineId
    model: ModelId
    error: ErrorRecord


class ProgramStarted(EventBase, frozen=True, kw_only=True):
    """A program enters the process table.

    ``kind``: programs of one kind are assumed to be alike in length; "" if it is not known.
    ``priority``: higher runs first. ``client_id``: the client's own name for it (a session id).
    ``idle_ttl_s``: the entry ends by itself after this time without a command (sessions).
    ``parent_thread``: the thread of ``parent`` that launched it. ``shares_quotas``: its parent
    launched it, and the parent's quotas of pages, embeds and tokens bound both together.
    """

    program: ProgramId
    tenant: TenantId
    form: ProgramForm
    name: str
    kind: str = ""
    client_id: str | None = None
    parent: ProgramId | None = None
    parent_thread: ThreadId | None = None
    priority: int = 0
    deadline_s: float | None = None
    idle_ttl_s: float | None = None
    quotas: Quotas = Quotas()
    shares_quotas: bool = False


REFUSED = "refused"
"""Reason of an end: the program entered the table and was then not launched."""

ENGINE_WAS_LOST = "its engine was lost"
"""Reason of an end after which the program may be run again, under a new id."""


LAST_CALL = "the client has said that this call is the last"
ENDED_BY_CLIENT = "its client has ended the session"
"""Reasons of the end of a session."""
IDLE_FOR = "idle for"
"""How the reason begins where a session has ended because it was idle; the time follows."""


class ProgramEnded(EventBase, frozen=True, kw_only=True):
    """A program has ended or is cancelled: its resources are freed, its commands cancelled."""

    program: ProgramId
    reason: str = "finished"


class Called(EventBase, frozen=True, kw_only=True):
    """A call to control, of a program or on its behalf."""

    program: ProgramId
    call: ControlCall


class BatchEncoded(EventBase, frozen=True, kw_only=True):
    engine: EngineId
    result: EncodeResult


class BatchCompleted(EventBase, frozen=True, kw_only=True):
    engine: EngineId
    result: BatchResult


class TransfersCompleted(EventBase, frozen=True, kw_only=True):
    """Transfers of KV contents that earlier messages began have ended."""

    engine: EngineId
    ended: TransfersEnded


class ExchangeEnded(EventBase, frozen=True, kw_only=True):
    """An engine has sent K and V to another one, or has received all of a lease."""

    engine: EngineId
    ended: SendEnded | ReceiveEnded


class Tick(EventBase, frozen=True, kw_only=True):
    """The time of a ``SetTimer`` has come. May also be sent at any other time; it only makes the
    controller decide again."""


Event = (
    EngineUp
    | EngineDown
    | EngineGivenUp
    | ProgramStarted
    | ProgramEnded
    | Called
    | BatchEncoded
    | BatchCompleted
    | TransfersCompleted
    | ExchangeEnded
    | Tick
)

EventAt = Callable[[float], Event]
"""Creates the event once the time at which it is handled is known."""
