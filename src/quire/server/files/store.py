"""Files on disk, per tenant: their names, lifetimes and sizes.

Owns the directory: ``ID.data`` is a file's content, ``ID.json`` its record, written last. Content
without a record and parts of records were not finished and are deleted at the next start. Calls
block on the disk; routes make them in threads. Must not know what the files are for.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from quire.core.errors import (
    UNREADABLE,
    ConfigError,
    NeverWithinQuota,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import TenantId
from quire.core.scratch import ScratchDirectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits on one file, and on all files of a tenant together. ``ttl_s``: the default
    lifetime."""

    max_file_bytes: int = 200 << 20
    max_bytes: int = 2 << 30
    max_files: int = 1024
    ttl_s: int = 30 * 86400


class FileRecord(msgspec.Struct, frozen=True):
    """One file; times are Unix times in seconds."""

    id: str
    tenant: TenantId
    filename: str
    purpose: str
    num_bytes: int
    created_s: int
    expires_s: int


class FileStore:
    """The files of all tenants. ``directory``: ``None`` for a temporary one, deleted with the
    store. Any thread may use it."""

    def __init__(
        self, directory: Path | None, limits: FileLimits, now_s: Callable[[], float]
    ) -> None:
        self._kept = directory
        self._limits = limits
        self._now_s = now_s
        self._lock = threading.Lock()
        self._records: dict[str, FileRecord] = {}
        self._incoming: dict[Path, IncomingFile] = {}
        """The files that are being written: they count as if they were stored."""
        self._held: Counter[str] = Counter()
        """Files that are in use, by id, and how often."""
        self._directory: Path | None = None
        self._temporary: ScratchDirectory | None = None

    @property
    def is_kept(self) -> bool:
        """Whether files of an earlier run may exist."""
        return self._kept is not None

    @property
    def directory(self) -> Path:
        """The directory, made and read at the first use. Raises ``ConfigError`` if that fails."""
        with self._lock:
            if self._directory is None:
                self._directory = self._open()
            return self._directory

    def _open(self) -> Path:
        try:
            if self._kept is None:
                self._temporary = ScratchDirectory("files")
                return self._temporary.path
            self._kept.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigError(
                f"the directory of files {self._kept} cannot be used: {exc.strerror}; choose "
                "another --data-dir"
            ) from exc
        for path in self._kept.glob("*.json"):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=FileRecord)
            except (OSError, *UNREADABLE) as exc:
                logger.warning("%s is not the record of a file and is ignored: %s", path, exc)
                continue
            self._records[record.id] = record
        for path in self._kept.glob("*.data"):
            if not path.with_suffix(".json").exists():
                path.unlink(missing_ok=True)
        delete_unfinished(self._kept)
        return self._kept

    def close(self) -> None:
        """Delete a temporary directory. Idempotent."""
        with self._lock:
            if self._temporary is not None:
                self._temporary.close()
                self._temporary = self._directory = None

    def begin(self, tenant: TenantId) -> IncomingFile:
        """Return a new file, to be written now.

        Raises:
            QuotaExceeded: the tenant has too many files.
        """
        self._drop_expired()
        path = self.directory / f"file-{secrets.token_hex(16)}.data"
        with self._lock:
            num_own = len(self._sizes(tenant))
            if num_own >= self._limits.max_files:
                raise QuotaExceeded(
                    f"{num_own} files are stored or arrive now, the most that one tenant may have: "
                    "delete some"
                )
            incoming = self._incoming[path] = IncomingFile(path, tenant, self, self._limits)
        try:
            incoming.open()
        except BaseException:
            self.forget(incoming)
            raise
        return incoming

    def num_bytes_beside(self, incoming: IncomingFile) -> int:
        """Return the bytes of all files of the tenant of ``incoming``, without its own."""
        with self._lock:
            return sum(self._sizes(incoming.tenant)) - incoming.num_bytes

    def forget(self, incoming: IncomingFile) -> None:
        """Count a file no more that will not be added. Idempotent."""
        with self._lock:
            self._incoming.pop(incoming.path, None)

    def _sizes(self, tenant: TenantId) -> list[int]:
        """Return the sizes of the tenant's files, stored and arriving. Call it under the lock."""
        every: list[FileRecord | IncomingFile]
        every = [*self._records.values(), *self._incoming.values()]
        return [one.num_bytes for one in every if one.tenant == tenant]

    def add(
        self, path: Path, tenant: TenantId, filename: str, purpose: str, ttl_s: int | None
    ) -> FileRecord:
        """Keep what was written to ``path``, a file of the store's directory; return its record."""
        now_s = int(self._now_s())
        record = FileRecord(
            id=path.stem,
            tenant=tenant,
            filename=filename,
            purpose=purpose,
            num_bytes=path.stat().st_size,
            created_s=now_s,
            expires_s=self.expiry_s(now_s, ttl_s),
        )
        write_whole(path.with_suffix(".json"), msgspec.json.encode(record))
        with self._lock:
            self._records[record.id] = record
            self._incoming.pop(path, None)
        return record

    def take(self, path: Path, record: FileRecord) -> None:
        """Turn ``path``, a file elsewhere on the same disk, into the file ``record``. May be
        repeated after an interruption."""
        write_whole(self.directory / f"{record.id}.json", msgspec.json.encode(record))
        path.replace(self.path(record))
        with self._lock:
            self._records[record.id] = record

    def expiry_s(self, created_s: int, ttl_s: int | None) -> int:
        """Return when a file expires. ``ttl_s``: its lifetime; ``None`` for the longest one."""
        return created_s + min(ttl_s or self._limits.ttl_s, self._limits.ttl_s)

    def files(self, tenant: TenantId) -> list[FileRecord]:
        """Return the tenant's files, oldest first."""
        self._drop_expired()
        with self._lock:
            own = [record for record in self._records.values() if record.tenant == tenant]
        return sorted(own, key=lambda record: (record.created_s, record.id))

    def get(self, tenant: TenantId, file_id: str) -> FileRecord:
        """Return the record of a file. Raises ``UnknownHandle`` if it does not exist, or is another
        tenant's."""
        self._drop_expired()
        record = self._records.get(file_id)
        if record is None or record.tenant != tenant:
            raise UnknownHandle(
                f"no file {file_id[:100]!r} is stored: upload it, or see GET /v1/files"
            )
        return record

    def path(self, record: FileRecord) -> Path:
        return self.directory / f"{record.id}.data"

    def hold(self, file_id: str) -> None:
        """Keep a file beyond its time, until as many calls of ``release``."""
        with self._lock:
            self._held[file_id] += 1

    def release(self, file_id: str) -> None:
        with self._lock:
            self._held[file_id] -= 1
            if not self._held[file_id]:
                del self._held[file_id]

    def delete(self, record: FileRecord) -> None:
        with self._lock:
            self._records.pop(record.id, None)
        for suffix in (".json", ".data"):
            with suppress(FileNotFoundError):
                (self.directory / f"{record.id}{suffix}").unlink()

    def _drop_expired(self) -> None:
        _ = self.directory
        now_s = self._now_s()
        with self._lock:
            old = [
                record
                for record in self._records.values()
                if record.expires_s <= now_s and record.id not in self._held
            ]
        for record in old:
            self.delete(record)


class IncomingFile:
    """A file that is being written. Call ``abandon`` unless it was given to ``FileStore.add``."""

    def __init__(self, path: Path, tenant: TenantId, store: FileStore, limits: FileLimits) -> None:
        self.path = path
        self.tenant = tenant
        self.num_bytes = 0
        self._store = store
        self._limits = limits
        self._file: BinaryIO

    def open(self) -> None:
        self._file = self.path.open("xb")

    def write(self, content: bytes) -> None:
        """Append ``content``.

        Raises:
            NeverWithinQuota, QuotaExceeded: the file, or all of the tenant's, become too large.
        """
        self.num_bytes += len(content)
        if self.num_bytes > self._limits.max_file_bytes:
            raise NeverWithinQuota(
                f"the file is larger than {self._limits.max_file_bytes} bytes, the most that one "
                "may have: send several",
                param="file",
            )
        room = self._limits.max_bytes - self._store.num_bytes_beside(self)
        if self.num_bytes > room:
            raise QuotaExceeded(
                f"the files of one tenant may have {self._limits.max_bytes} bytes together, and "
                f"{max(room, 0)} were left: delete some",
                param="file",
            )
        self._file.write(content)

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
        self._store.forget(self)


def write_whole(path: Path, content: bytes) -> None:
    """Write all of ``content`` or leave the old content, even if the machine stops."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def delete_unfinished(directory: Path) -> None:
    """Delete what ``write_whole`` was writing when the process was killed."""
    for part in directory.glob("*.part"):
        part.unlink(missing_ok=True)
