"""The event log: every event that the controller received, and a digest of the resulting actions.

Owns the file and its format. The log holds no API keys and no weights, but all tokens: it is as
confidential as the prompts. ``replay`` reads it.

A log is a sequence of wire messages (``core.wire``). Each is written as the number of frames, then
for each frame its length and its bytes; numbers are unsigned 32-bit little-endian. The first
message is a ``LogHeader``, all others are ``LogEntry``.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

import msgspec

from quire import __version__
from quire.core.actions import Action
from quire.core.config import NodeConfig, TenantTotals
from quire.core.errors import ConfigError, InvalidArgument
from quire.core.events import Event
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.core.scheduler_config import SchedulerConfig
from quire.core.wire import Codec, Frame

logger = logging.getLogger(__name__)

_U32 = struct.Struct("<I")
_MAX_FRAME_BYTES = 1 << 30


class RecordedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant without its keys."""

    id: TenantId
    weight: float
    quotas: Quotas
    totals: TenantTotals = TenantTotals()


class LogHeader(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What is needed to build a controller that makes the same decisions."""

    release: str
    scheduler: SchedulerConfig
    tenants: list[RecordedTenant]


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``digest`` covers the actions of this event and, through the previous digest, of all before.
    ``failure``: the exception that the controller raised, if it did."""

    event: Event
    digest: bytes
    failure: str | None = None


class ActionChain:
    """The digest chain over encoded actions (BLAKE2b, 16 bytes)."""

    def __init__(self) -> None:
        self._codec: Codec[list[Action]] = Codec(list[Action])
        self._digest = bytes(16)

    def extend(self, actions: Sequence[Action]) -> bytes:
        digest = hashlib.blake2b(self._digest, digest_size=16)
        for frame in self._codec.encode(list(actions)):
            digest.update(_U32.pack(len(frame)))
            digest.update(frame)
        self._digest = digest.digest()
        return self._digest


class EventRecorder:
    """An ``Observer`` of the control thread that writes the log.

    A disk error, or an event of a native program that cannot be encoded, ends the recording and not
    the node: ``failure`` then has the reason.
    """

    def __init__(self, path: Path, config: NodeConfig) -> None:
        """Start a new log at ``path``, replacing an existing file.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._path = path
        self._codec: Codec[LogHeader | LogEntry] = Codec(LogHeader | LogEntry)
        self._chain = ActionChain()
        self._failure: str | None = None
        try:
            self._file = path.open("wb")
            self._write(_header(config))
            self._file.flush()
        except OSError as exc:
            raise ConfigError(f"record_path is {path}, which cannot be written: {exc}") from exc

    @property
    def failure(self) -> str | None:
        return self._failure

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        self._record(event, actions, None)

    def observe_failure(self, event: Event, error: Exception) -> None:
        self._record(event, (), describe(error))

    def _record(self, event: Event, actions: Sequence[Action], failure: str | None) -> None:
        if self._failure is not None:
            return
        try:
            digest = self._chain.extend(actions)
            self._write(LogEntry(event=event, digest=digest, failure=failure))
        except (OSError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            self._fail(exc)

    def flush(self) -> None:
        if self._failure is not None:
            return
        try:
            self._file.flush()
        except OSError as exc:
            self._fail(exc)

    def close(self) -> None:
        """Close the file, after the control thread has ended."""
        try:
            self._file.close()
        except OSError as exc:  # its buffer cannot be written
            if self._failure is None:
                self._fail(exc)

    def _write(self, message: LogHeader | LogEntry) -> None:
        frames = self._codec.encode(message)
        self._file.write(_U32.pack(len(frames)))
        for frame in frames:
            self._file.write(_U32.pack(len(frame)))
            self._file.write(frame)

    def _fail(self, exc: Exception) -> None:
        self._failure = f"the event log {self._path} ended early: {exc}"
        logger.error("%s", self._failure)


def describe(error: Exception) -> str:
    """The text of a controller's exception in the log."""
    return f"{type(error).__name__}: {error}"


def _header(config: NodeConfig) -> LogHeader:
    return LogHeader(
        release=__version__,
        scheduler=config.scheduler,
        tenants=[
            RecordedTenant(
                id=tenant.id, weight=tenant.weight, quotas=tenant.quotas, totals=tenant.totals
            )
            for tenant in config.tenants
        ],
    )


def read_log(
    path: Path, on_cut: Callable[[int], None] | None = None
) -> Iterator[LogHeader | LogEntry]:
    """The messages of a log, the header first. A truncated last message (the node was killed, or
    still writes it) is left out, and ``on_cut`` receives the number of its bytes.

    Raises:
        InvalidArgument: not a readable file, or not an event log.
        ProtocolMismatch: a log of another protocol version.
    """
    codec: Codec[LogHeader | LogEntry] = Codec(LogHeader | LogEntry)
    try:
        with path.open("rb") as file:
            first, num_read = True, 0
            while (frames := _read_message(file)) is not None:
                message = codec.decode(frames)
                if isinstance(message, LogHeader) is not first:
                    raise _no_log(path)
                first, num_read = False, file.tell()
                yield message
            num_cut = file.seek(0, SEEK_END) - num_read
            if num_cut and not first and on_cut is not None:
                on_cut(num_cut)
    except OSError as exc:
        raise InvalidArgument(
            f"the event log {path} cannot be read ({exc.strerror}): name a file that --record wrote"
        ) from exc
    if first:
        raise InvalidArgument(
            f"{path} is empty or cut off, and no event log of Quire: name a file that --record "
            "wrote"
        )


def _no_log(path: object) -> InvalidArgument:
    return InvalidArgument(f"{path} is no event log of Quire: name a file that --record wrote")


def _read_message(file: BinaryIO) -> list[Frame] | None:
    num_frames = _read_u32(file)
    if num_frames is None:
        return None
    frames: list[Frame] = []
    for _ in range(num_frames):
        num_bytes = _read_u32(file)
        if num_bytes is None:
            return None
        if num_bytes > _MAX_FRAME_BYTES:
            raise _no_log(file.name)
        frame = file.read(num_bytes)
        if len(frame) < num_bytes:
            return None
        frames.append(frame)
    return frames


def _read_u32(file: BinaryIO) -> int | None:
    raw = file.read(_U32.size)
    return _U32.unpack(raw)[0] if len(raw) == _U32.size else None
