"""An untrusted program before it runs: its code and its manifest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from quire.core.ids import ProgramForm
from quire.core.program_files import MARK
from quire.core.quotas import Quotas
from quire.programs.capabilities import Capabilities
from quire.programs.sandbox.messages import Manifest

WASM_MAGIC = b"\0asm"


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """``code``: Python source as UTF-8, or a WebAssembly module. ``digest``: its SHA-256 in
    hexadecimal. ``manifest``: see ``Inferlet``."""

    code: bytes
    digest: str
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def form(self) -> ProgramForm:
        """Workflows run natively, so a guest is always an inferlet."""
        return "inferlet"

    @property
    def quotas(self) -> Quotas:
        return self.manifest.quotas

    @property
    def capabilities(self) -> Capabilities:
        """The hosts, topics, stores and MCP servers that the program may reach."""
        manifest = self.manifest
        return Capabilities(manifest.hosts, manifest.topics, manifest.stores, manifest.mcp_servers)

    def narrowed(self, allowed: Capabilities) -> GuestProgram:
        """The same program with its capabilities restricted to ``allowed``."""
        both = self.capabilities.narrowed(allowed)
        manifest = msgspec.structs.replace(
            self.manifest,
            hosts=both.hosts or (),
            topics=both.topics or (),
            stores=both.stores or (),
            mcp_servers=both.mcp_servers or (),
        )
        return replace(self, manifest=manifest)

    @property
    def restartable(self) -> bool:
        return self.manifest.restartable

    @property
    def needs_model(self) -> bool:
        """As of an ``Inferlet``: Python source runs as one. A module may use no model."""
        return not self.is_module

    @property
    def kind(self) -> Literal["python", "package", "module"]:
        """One file of Python source, several files, or WebAssembly."""
        if self.is_module:
            return "module"
        return "package" if self.code.startswith(MARK.encode()) else "python"

    @property
    def is_module(self) -> bool:
        return is_module(self.code)


def is_module(code: bytes) -> bool:
    """Whether ``code`` is WebAssembly; any other code is treated as Python source."""
    return code.startswith(WASM_MAGIC)


def code_digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()
