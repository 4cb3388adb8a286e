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
    """Ask for the manifest of ``code``; answered by ``Inspection`` of the same number."""

    number: int
    code: bytes
    limits: GuestLimits


class Keep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What many starts share, said once. ``code``: programs by digest. ``models``: those of all
    starts from here on (``None``: as before). ``forget``: digests that will not be named again.
    """

    code: dict[str, bytes]
    models: tuple[GuestModel, ...] | None
    forget: list[str]


class Start(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Start a guest. ``digest``: of code that was said before; ``launch`` is without models.
    ``tenant``: with whose programs it shares connections. ``hosts``: those that it may reach
    (``None``: any). ``record``: a program that may begin again has the same each time, and answers
    that it had from other hosts are given to it again.
    ``family``: the number of those that it shares ``family_cpu_ms`` of processor time with, all of
    which run in the same process (``None``: it shares none)."""

    guest: int
    tenant: TenantId
    name: str
    digest: str
    launch: GuestLaunch
    limits: GuestLimits
    hosts: tuple[str, ...] | None
    allow_private_hosts: bool
    record: int | None = None
    family: int = 0
    family_cpu_ms: int | None = None


class Starts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All guests that one turn of the node's loop starts."""

    starts: list[Start]


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a guest without asking it; what it has used is said of it, and nothing more counts."""

    guest: int
    error: ErrorRecord


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
    """What a guest that ends has used. ``memory_bytes``: the most that it had, where known."""

    cpu_ns: int
    memory_bytes: int | None


class GuestReport(msgspec.Struct, frozen=True, gc=False):
    """What one guest has asked for, or printed, or used. A guest may have several in one message.
    What it has used is told once, before its end."""

    guest: int
    calls: list[GuestCalls]
    log: list[LogText]
    spent: Spent | None = None


class Reports(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    reports: list[GuestReport]


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    number: int
    inspected: Inspected


FromSandbox = Hello | Progress | SandboxReady | LoadFailed | Inspection | Reports
ToSandbox = Welcome | HelloRefused | Inspect | Keep | Starts | Stop | Tell


def sandbox_codec() -> Codec[FromSandbox]:
    """What the node decodes."""
    return Codec(FromSandbox)


def node_codec() -> Codec[ToSandbox]:
    """What a sandbox process decodes."""
    return Codec(ToSandbox)
