"""Uploaded programs on disk, by their content, separate for each tenant.

A name may be uploaded again with other code; it then refers to the newest upload. Blocks on disk;
call it off the loop.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quire.core.errors import UNREADABLE, CapacityError, QuotaExceeded, UnknownHandle
from quire.core.ids import TenantId
from quire.programs.sandbox.messages import Manifest
from quire.programs.sandbox.program import GuestProgram

MAX_UPLOADS = 256
"""The most uploads of one tenant."""
_MIN_PREFIX = 8


class UploadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One uploaded program. ``digest``: SHA-256 of ``code``; ``created_s``: Unix time."""

    digest: str
    manifest: Manifest
    code: bytes
    created_s: float

    @property
    def program(self) -> GuestProgram:
        return GuestProgram(self.code, self.digest, self.manifest)


@dataclass(frozen=True, slots=True)
class _Head:
    """The part of a file that a search needs. ``version`` tells whether the file is unchanged;
    ``name`` is the program's, ``None`` for a file that cannot be read."""

    path: Path
    version: tuple[int, int]
    name: str | None
    created_s: float


class UploadTable:
    """One file for each upload, in a directory for each tenant."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._heads_of: dict[Path, dict[Path, _Head]] = {}

    def put(self, program: GuestProgram, tenant: TenantId) -> UploadRecord:
        """Store ``program``; uploading the same code again makes it the newest of its name.

        Raises:
            QuotaExceeded: the tenant has too many.
            CapacityError: the disk is full, or cannot be written.
        """
        folder = self._folder(tenant)
        path = folder / program.digest
        if not path.exists() and len(self._paths(tenant)) >= MAX_UPLOADS:
            raise QuotaExceeded(
                f"this tenant has uploaded {MAX_UPLOADS} programs, no more are kept: delete one"
            )
        upload = UploadRecord(
            digest=program.digest,
            manifest=program.manifest,
            code=program.code,
            created_s=time.time(),
        )
        unfinished = path.with_suffix(
            f".{secrets.token_hex(8)}"
        )  # another thread or node may store the same code
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.write_bytes(msgspec.msgpack.encode(upload))
            os.replace(unfinished, path)
        except OSError as exc:
            unfinished.unlink(missing_ok=True)
            raise CapacityError(f"the node cannot keep this program: {exc.strerror}") from exc
        return upload

    def all(self, tenant: TenantId) -> Iterator[UploadRecord]:
        """The uploads, newest first. A generator, because together they are large."""
        for head in self._heads(tenant):
            if (upload := _read(head.path)) is not None:
                yield upload

    def find(self, wanted: str, tenant: TenantId) -> UploadRecord:
        """Find by digest, by at least eight leading characters of it, or the newest of a name.

        Raises:
            UnknownHandle: this tenant has uploaded no such program.
        """
        for head in self._heads(tenant):
            by_digest = len(wanted) >= _MIN_PREFIX and head.path.name.startswith(wanted)
            if (by_digest or head.name == wanted) and (upload := _read(head.path)) is not None:
                return upload
        raise UnknownHandle(
            f"no program {wanted!r} has been uploaded: push it first (quire push FILE)",
            param="program",
        )

    def delete(self, wanted: str, tenant: TenantId) -> UploadRecord:
        """Delete an upload; its running programs go on. Errors as with ``find``."""
        upload = self.find(wanted, tenant)
        (self._folder(tenant) / upload.digest).unlink(missing_ok=True)
        return upload

    def _folder(self, tenant: TenantId) -> Path:
        """The tenant's directory, named by a hash: a tenant's name may contain any characters."""
        return self._directory / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def _heads(self, tenant: TenantId) -> list[_Head]:
        """The heads, newest first. Only new and changed files are read; their code is not kept."""
        folder = self._folder(tenant)
        known, heads = self._heads_of.get(folder, {}), {}
        for path in self._paths(tenant):
            with suppress(FileNotFoundError):  # deleted meanwhile
                found = path.stat()
                version = (found.st_ino, found.st_mtime_ns)
                head = known.get(path)
                if head is None or head.version != version:
                    head = _head(path, version)
                heads[path] = head
        self._heads_of[folder] = heads
        readable = [head for head in heads.values() if head.name is not None]
        return sorted(readable, key=lambda head: head.created_s, reverse=True)

    def _paths(self, tenant: TenantId) -> list[Path]:
        return [path for path in self._folder(tenant).glob("*") if not path.suffix]


def _head(path: Path, version: tuple[int, int]) -> _Head:
    upload = _read(path)
    if upload is None:
        return _Head(path, version, None, 0.0)
    return _Head(path, version, upload.manifest.name, upload.created_s)


def _read(path: Path) -> UploadRecord | None:
    """The upload in a file; ``None`` if it was deleted meanwhile, written by another release, or
    is damaged."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=UploadRecord)
    except (OSError, *UNREADABLE):
        return None
