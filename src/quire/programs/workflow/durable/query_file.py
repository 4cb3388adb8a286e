"""``QueryFile``: the file of one query, to which frames are appended.

Owns the file's format, and the lock that lets one node at a time answer the query. Must not know
the content of a frame. Blocks on disk; may be used by several threads.

Each frame has its length and its place with a checksum of both, and a digest of its content. So a
frame that was cut off when its writer ended differs from one that was damaged later. A frame that
was cut off is dropped. A damaged frame is an error, because the frames after it may be lost.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.core.errors import CapacityError, InvalidArgument

MAGIC = b"quire query 1\n"
_HEAD = struct.Struct(">II")
"""The length of a frame's content, and a checksum of length and place."""
_DIGEST_BYTES = 16
FRAME_BYTES = _HEAD.size + _DIGEST_BYTES
"""Bytes of a frame besides its content."""


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise what the disk refuses as ``CapacityError``."""
    try:
        yield
    except OSError as exc:
        raise CapacityError(
            f"the node cannot keep the query: {exc.strerror}: check that its data directory is "
            "there and can be written, and make room if it is full"
        ) from exc


class DamagedQuery(InvalidArgument):
    """The file does not contain what was written."""


class QueryFile:
    """The file at ``path``, locked until ``close``. ``frames``: the frames that were in it.

    Raises:
        CapacityError: the file is open elsewhere, or the disk fails.
        DamagedQuery: a frame is not what was written, or the file is of another release.
    """

    def __init__(self, path: Path, now_s: float) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: int | None = _opened(path)
        try:
            self.frames, self.num_bytes = self._read()
            self._num_frames = len(self.frames)
            if not self.num_bytes:
                self._write(MAGIC, now_s)
                _settle(path.parent)
        except BaseException:
            self.close()
            raise

    def append(self, content: bytes, now_s: float) -> None:
        """Append a frame; return when it is on disk. Raises ``CapacityError`` if it cannot be
        written; then nothing of it is in the file."""
        with self._lock:
            self._write(_frame(self._num_frames, content), now_s)
            self._num_frames += 1

    def close(self) -> None:
        """Close and unlock the file. Idempotent."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _write(self, content: bytes, now_s: float) -> None:
        if self._file is None:
            raise CapacityError(f"{self.path.name} is closed: the query has ended")
        try:
            with disk_errors():
                self._write_at(self._file, memoryview(content), now_s)
        except CapacityError:
            with suppress(OSError):  # what is left of it counts as cut off
                os.ftruncate(self._file, self.num_bytes)
            raise
        self.num_bytes += len(content)

    def _write_at(self, file: int, left: memoryview, now_s: float) -> None:
        place = self.num_bytes
        while left:
            num = os.pwrite(file, left, place)
            place, left = place + num, left[num:]
        os.utime(file, (now_s, now_s))
        os.fsync(file)

    def _read(self) -> tuple[list[bytes], int]:
        """The frames, and the end of the last complete one; the rest of the file is cut off."""
        assert self._file is not None, "it was opened"
        size = os.fstat(self._file).st_size
        content = os.pread(self._file, size, 0)
        if not content.startswith(MAGIC):
            if MAGIC.startswith(content):
                os.ftruncate(self._file, 0)
                return [], 0
            raise DamagedQuery(
                f"{self.path.name} is not what this release keeps of a query: give the query "
                "another id"
            )
        frames, end = _whole_frames(self.path.name, content)
        if end < size:
            os.ftruncate(self._file, end)
        return frames, end


def write_whole(path: Path, contents: Iterable[bytes], now_s: float) -> None:
    """Write a file of these frames atomically: after a crash it is complete or does not exist.

    Raises:
        CapacityError: the disk fails.
    """
    unfinished = path.with_suffix(".new")
    try:
        with disk_errors():
            with open(unfinished, "wb", opener=_private) as file:
                file.write(MAGIC)
                for place, content in enumerate(contents):
                    file.write(_frame(place, content))
                file.flush()
                os.utime(file.fileno(), (now_s, now_s))
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            _settle(path.parent)
    except CapacityError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _whole_frames(name: str, content: bytes) -> tuple[list[bytes], int]:
    frames: list[bytes] = []
    end = len(MAGIC)
    while len(content) - end >= _HEAD.size:
        length, check = _HEAD.unpack_from(content, end)
        start = end + FRAME_BYTES
        if check != _check(length, len(frames)):
            if not any(content[end:]):  # space that was made and never written
                break
            raise _damaged(name, end)
        if start + length > len(content):
            break
        digest, frame = content[end + _HEAD.size : start], content[start : start + length]
        if digest != _digest(frame):
            if start + length == len(content):  # the last one
                break
            raise _damaged(name, end)
        frames.append(frame)
        end = start + length
    return frames, end


def _damaged(name: str, place: int) -> DamagedQuery:
    return DamagedQuery(
        f"{name}, what is kept of the query, is damaged at byte {place}: give the query another id"
    )


def _frame(place: int, content: bytes) -> bytes:
    head = _HEAD.pack(len(content), _check(len(content), place))
    return head + _digest(content) + content


def _check(length: int, place: int) -> int:
    return zlib.crc32(struct.pack(">II", length, place))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _opened(path: Path) -> int:
    """Open and lock the file, and check that it still has this name."""
    while True:
        with disk_errors():
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass  # it was removed meanwhile
        except OSError as exc:
            os.close(file)
            raise CapacityError(
                "the query is being answered: wait for its end, or give this one another id"
            ) from exc
        os.close(file)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _settle(folder: Path) -> None:
    """Flush the folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
