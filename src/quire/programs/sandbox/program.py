"""An untrusted program before it runs: its code and what it says of itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from quire.core.events import Quotas
from quire.programs.sandbox.messages import Manifest


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """``digest``: SHA-256 of ``source`` in hexadecimal. ``manifest``: see ``Inferlet``."""

    source: str
    digest: str
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def quotas(self) -> Quotas:
        return self.manifest.quotas


def source_digest(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


__all__ = ["GuestProgram", "source_digest"]
