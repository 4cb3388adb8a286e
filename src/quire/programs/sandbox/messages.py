"""Messages between a guest and its host, as JSON text: calls out, events in.

A turn of a guest is one call into it with all events that have arrived for it, and one answer with
all of its calls: those of any program (``core.calls``), and those that only guests make. Calls and
events are arrays that begin with their name. No message names a program, because a guest is
identified by its instance. Messages from a guest are untrusted: the host decodes them strictly, and
control validates every command again.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.core.actions import ReplyValue
from quire.core.calls import Call, CallBase
from quire.core.engine_info import EngineInfo
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, ModelId, ProgramId
from quire.core.quotas import Quotas
from quire.programs.parameters import Parameter

GUEST_PROTOCOL = 6
"""Incremented when a message changes; a component with another version is not used."""


class Send(CallBase, frozen=True):
    """A message to the client; answered by ``Taken`` once there is room for more."""

    text: str


class Received(CallBase, frozen=True):
    """The program has read ``count`` of the client's messages."""

    count: int


class Fetch(CallBase, frozen=True):
    """An HTTP request; answered by ``Fetched`` or ``FetchFailed``."""

    request: int
    method: Literal["GET", "POST"]
    url: str
    body: bytes | None
    headers: dict[str, str] | None


class Ended(CallBase, frozen=True):
    """The last call: the program has ended. ``result_json``: its return value as JSON text."""

    state: Literal["finished", "failed", "cancelled", "terminated"]
    result_json: str
    error: ErrorRecord | None
    unseen: list[ErrorRecord]
    leaked: list[str]


GuestCalls = Call | Send | Received | Fetch | Ended


class Turn(msgspec.Struct, frozen=True, gc=False):
    """The calls of one turn. ``wake_in_s``: the guest wants its next turn then, even without
    events."""

    calls: list[GuestCalls]
    wake_in_s: float | None = None


class GuestEvent(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of the events for a guest."""


class Replied(GuestEvent, frozen=True):
    command: CommandId
    reply: ReplyValue
    last: bool


class CommandFailed(GuestEvent, frozen=True):
    command: CommandId
    error: ErrorRecord


class Terminated(GuestEvent, frozen=True):
    """The node has ended the program."""

    error: ErrorRecord


class Message(GuestEvent, frozen=True):
    """A message from the client."""

    text: str


class InputClosed(GuestEvent, frozen=True):
    """The client sends no further messages."""


class Taken(GuestEvent, frozen=True):
    """The client has read ``count`` messages."""

    count: int


class ClientGone(GuestEvent, frozen=True):
    """No further message can be sent to the client."""

    error: ErrorRecord


class Fetched(GuestEvent, frozen=True):
    request: int
    status: int
    headers: dict[str, str]
    text: str
    body: bytes


class FetchFailed(GuestEvent, frozen=True):
    request: int
    error: ErrorRecord


class ServiceAnswered(GuestEvent, frozen=True):
    number: int
    value: Any


class ServiceRefused(GuestEvent, frozen=True):
    number: int
    error: ErrorRecord


class CancelAsked(GuestEvent, frozen=True):
    """The program's owner asks it to end."""

    reason: str


class TimeCome(GuestEvent, frozen=True):
    """A timer of the guest is due."""


GuestEvents = (
    Replied
    | CommandFailed
    | Terminated
    | Message
    | InputClosed
    | Taken
    | ClientGone
    | Fetched
    | FetchFailed
    | ServiceAnswered
    | ServiceRefused
    | CancelAsked
    | TimeCome
)


class GuestModel(msgspec.Struct, frozen=True):
    """A served model as described to a guest; tokenizer and template stay in the host. ``dialect``:
    the format of the model's calls, determined from its template."""

    id: ModelId
    base: ModelId
    info: EngineInfo
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    defaults: dict[str, Any]
    special_tokens: dict[str, str]
    adapter: str | None
    node_traits: frozenset[str]
    dialect: str


class GuestLaunch(msgspec.Struct, frozen=True, gc=False):
    """The parameters with which a guest starts."""

    program: ProgramId
    args: tuple[str, ...]
    models: tuple[GuestModel, ...]
    quotas: Quotas
    seed: int
    mailbox_capacity: int
    mailbox_limit: int
    max_message_bytes: int
    grace_s: float
    named: dict[str, str] = msgspec.field(default_factory=dict)


class Manifest(msgspec.Struct, frozen=True):
    """A program's ``@inferlet`` as data. ``parameters``: its arguments; ``None`` if it does not
    declare them."""

    name: str
    description: str = ""
    traits: dict[str, int] = msgspec.field(default_factory=dict)
    quotas: Quotas = Quotas()
    hosts: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    mcp_servers: tuple[str, ...] = ()
    restartable: bool = False
    parameters: tuple[Parameter, ...] | None = None


class Inspected(msgspec.Struct, frozen=True):
    """The answer to an inspection of source: its manifest, or why it is not a program."""

    manifest: Manifest | None = None
    error: ErrorRecord | None = None


class HostAnswer(msgspec.Struct, frozen=True):
    """The host's immediate answer to a question (``guest.questions``)."""

    value: Any = None
    error: ErrorRecord | None = None
