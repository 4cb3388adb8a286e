"""Wire messages between the node and a sandbox process.

Their order: ``Hello``, then ``Welcome`` or ``HelloRefused`` as with engines; ``Progress`` while the
sandbox is built, then ``SandboxReady`` or ``LoadFailed``; from then on batches in both directions.
The node numbers the guests of a connection. The number is valid on this connection only: the node
looks up the program in its own table of the connection.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import ErrorRecord
from quire.core.ids import ModelId, TenantId
from quire.core.wire import Codec
from quire.node.transports.messages import Hello, HelloRefused, LoadFailed, Progress, Welcome
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.messages import (
    Fetch,
    Fetched,
    FetchFailed,
    GuestCalls,
    GuestEvents,
    GuestLaunch,
    GuestModel,
    Inspected,
)


class SandboxOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on a sandbox process's standard input; see ``LaunchOrder``.

    ``engines``: where the models' tokenizers and templates are.
    """

    version: int
    endpoint: str
    token: str
    cache_dir: str
    num_warm: int
    engines: tuple[EngineConfig, ...]


class SandboxReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Guests may be started. ``models``: those whose tokenizers could be read."""

    models: tuple[ModelId, ...]


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask for the manifest of ``code``; answered by an ``Inspection`` with the same number."""

    number: int
    code: bytes
    limits: GuestLimits


class Keep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep what many starts share. ``code``: programs by digest. ``models``: those of all later
    starts (``None``: unchanged). ``forget``: digests that will not be used again."""

    code: dict[str, bytes]
    models: tuple[GuestModel, ...] | None
    forget: list[str]


class Start(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Start a guest. ``digest``: that of code that was sent before; ``launch`` is without models.
    ``tenant``: guests of one tenant share connections. ``hosts``: those that the guest may reach
    (``None``: any). ``is_recorded``: the program is restartable. Its HTTP requests go to the node,
    which records their answers and orders what has no answer yet (``OrderFetch``).

    ``family``: number of the family that shares ``family_cpu_ms`` of processor time; all its guests
    run in the same process (``None``: no shared limit).
    """

    guest: int
    tenant: TenantId
    name: str
    digest: str
    launch: GuestLaunch
    limits: GuestLimits
    hosts: tuple[str, ...] | None
    allow_private_hosts: bool
    is_recorded: bool = False
    family: int = 0
    family_cpu_ms: int | None = None


class Starts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All guests that one turn of the node's loop starts."""

    starts: list[Start]


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a guest at once; only its resource usage is still reported."""

    guest: int
    error: ErrorRecord


class OrderFetch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make an HTTP request of a guest; answered by ``FetchDone``."""

    guest: int
    call: Fetch


class FetchDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to ``OrderFetch``, for the node."""

    guest: int
    event: Fetched | FetchFailed


class GuestNews(msgspec.Struct, frozen=True, gc=False):
    """Events for one guest, in order."""

    guest: int
    events: list[GuestEvents]


class Tell(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    news: list[GuestNews]


class LogText(msgspec.Struct, frozen=True):
    level: str
    text: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class Spent(msgspec.Struct, frozen=True, gc=False):
    """The resource usage of an ending guest. ``memory_bytes``: the maximum, where known."""

    cpu_ns: int
    memory_bytes: int | None


class GuestReport(msgspec.Struct, frozen=True, gc=False):
    """Calls, output or resource usage of one guest. A message may have several of a guest. The
    usage is sent once, before the guest's end."""

    guest: int
    calls: list[GuestCalls]
    log: list[LogText]
    spent: Spent | None = None


class Reports(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    reports: list[GuestReport]


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    number: int
    inspected: Inspected


FromSandbox = Hello | Progress | SandboxReady | LoadFailed | Inspection | Reports | FetchDone
ToSandbox = Welcome | HelloRefused | Inspect | Keep | Starts | Stop | Tell | OrderFetch


def sandbox_codec() -> Codec[FromSandbox]:
    """The codec of the messages that the node receives."""
    return Codec(FromSandbox)


def node_codec() -> Codec[ToSandbox]:
    """The codec of the messages that a sandbox process receives."""
    return Codec(ToSandbox)
