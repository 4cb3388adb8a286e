"""Wire messages between the node and its engine and encoder processes.

Their order: the process sends ``Hello``; the node answers ``Welcome``, or ``HelloRefused``, after
which the process exits. While it loads, the process sends ``Progress``, then ``Ready`` or
``LoadFailed``. From then on ``Batch`` goes to an engine; ``BatchResult`` and ``EngineReport``, or
one last ``Faulted``, come back. An encoder gets ``EncodeBatch`` and answers ``EncodeResult``.
Every header has the protocol version (``core.wire``); ``Hello`` repeats it, so that a refusal can
name both versions.
"""

from __future__ import annotations

import msgspec

from quire.core.batch import Batch
from quire.core.batch_result import EngineAnswer
from quire.core.config import EncoderConfig, EngineConfig
from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo
from quire.core.engine_info import EngineInfo
from quire.core.errors import ErrorRecord
from quire.core.wire import Codec

RECORD_FORMAT = "%(levelname)s %(name)s: %(message)s"
"""Format of the log on a process's standard error; the node logs each record at its level."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine process has started. ``token`` proves that the node started it."""

    version: int
    release: str
    pid: int
    token: str


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    version: int
    release: str


class HelloRefused(msgspec.Struct, frozen=True, kw_only=True, tag="Refused"):
    """The tag keeps its name so that a process of an older release can read the refusal."""

    error: ErrorRecord


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Progress of loading: ``fraction`` from 0 to 1 of ``stage``."""

    stage: str
    fraction: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    info: EngineInfo | EncoderInfo


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    error: ErrorRecord


class Faulted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine's memory can no longer be trusted; it exits after this."""

    error: ErrorRecord


FromEngine = Hello | Progress | Ready | LoadFailed | Faulted | EngineAnswer | EncodeResult
ToEngine = Welcome | HelloRefused | Batch | EncodeBatch


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on an engine process's standard input, as JSON.

    The pipe then stays open: its end means that the node is gone. Every further line is
    a heartbeat, answered by one ``Pulse`` line on standard output.
    """

    version: int
    endpoint: str
    token: str
    config: EngineConfig


class EncoderOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The launch order of an encoder process."""

    version: int
    endpoint: str
    token: str
    config: EncoderConfig


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one heartbeat. ``busy_s``: how long the current batch has been running."""

    busy_s: float


def engine_codec() -> Codec[FromEngine]:
    """The codec of the messages that the node receives."""
    return Codec(FromEngine)


def node_codec() -> Codec[ToEngine]:
    """The codec of the messages that an engine process receives."""
    return Codec(ToEngine)
