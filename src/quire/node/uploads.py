"""Uploaded programs by their content: kept on disk, each tenant's own.

A name may be uploaded again with other code; the newest of that name is meant then. Blocks on disk;
call it off the loop.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from pathlib import Path

import msgspec

from quire.core.errors import QuotaExceeded, UnknownHandle
from quire.core.ids import TenantId
from quire.programs.sandbox.messages import Manifest
from quire.programs.sandbox.program import GuestProgram

MAX_UPLOADS = 256
"""Per tenant."""
_MIN_PREFIX = 8


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """One uploaded program. ``digest``: SHA-256 of ``code``; ``created_s``: Unix time."""

    digest: str
    manifest: Manifest
    code: bytes
    created_s: float

    @property
    def program(self) -> GuestProgram:
        return GuestProgram(self.code, self.digest, self.manifest)


class UploadTable:
    """One file for each upload, in a directory for each tenant."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, program: GuestProgram, tenant: TenantId) -> Upload:
        """Keep ``program``; the same code again becomes the newest of its name.

        Raises:
            QuotaExceeded: the tenant has too many.
        """
        folder = self._folder(tenant)
        path = folder / program.digest
        if not path.exists() and len(self._paths(tenant)) >= MAX_UPLOADS:
            raise QuotaExceeded(
                f"this tenant has uploaded {MAX_UPLOADS} programs, no more are kept: delete one"
            )
        upload = Upload(
            digest=program.digest,
            manifest=program.manifest,
            code=program.code,
            created_s=time.time(),
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{secrets.token_hex(8)}")  # others may put the same code
        unfinished.write_bytes(msgspec.msgpack.encode(upload))
        os.replace(unfinished, path)
        return upload

    def all(self, tenant: TenantId) -> list[Upload]:
        """Newest first."""
        found = [upload for path in self._paths(tenant) if (upload := _read(path)) is not None]
        return sorted(found, key=lambda upload: upload.created_s, reverse=True)

    def find(self, wanted: str, tenant: TenantId) -> Upload:
        """By digest, by at least eight characters of its beginning, or the newest of a name.

        Raises:
            UnknownHandle: this tenant has uploaded no such program.
        """
        for upload in self.all(tenant):
            by_digest = len(wanted) >= _MIN_PREFIX and upload.digest.startswith(wanted)
            if by_digest or upload.manifest.name == wanted:
                return upload
        raise UnknownHandle(
            f"no program {wanted!r} has been uploaded: push it first (quire push FILE)",
            param="program",
        )

    def delete(self, wanted: str, tenant: TenantId) -> Upload:
        """Forget one; programs that run of it go on. Errors as with ``find``."""
        upload = self.find(wanted, tenant)
        (self._folder(tenant) / upload.digest).unlink(missing_ok=True)
        return upload

    def _folder(self, tenant: TenantId) -> Path:
        """A tenant's name may hold anything, its hash may not."""
        return self._directory / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def _paths(self, tenant: TenantId) -> list[Path]:
        return [path for path in self._folder(tenant).glob("*") if not path.suffix]


def _read(path: Path) -> Upload | None:
    """``None`` for one that was deleted meanwhile, or that another release has written."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Upload)
    except (OSError, msgspec.DecodeError):
        return None


__all__ = ["MAX_UPLOADS", "Upload", "UploadTable"]
