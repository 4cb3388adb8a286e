"""The options of ``quire serve`` about untrusted programs; see ``quire.cli.options.shared``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.options.http import AllowUpload
from quire.cli.options.sizes import size_value
from quire.core.config import SandboxConfig
from quire.core.sizes import format_size

_DEFAULTS = SandboxConfig()
_PANEL = "Sandbox"
_LEAST_MEMORY_BYTES = 24 << 20
"""The memory that Python itself takes before a program starts."""


def _memory(value: object) -> int:
    size = size_value(value)
    if size < _LEAST_MEMORY_BYTES:
        raise typer.BadParameter(
            f"{value} is less than {format_size(_LEAST_MEMORY_BYTES)}, which Python takes before a "
            "program has begun"
        )
    return size


Sandbox = Annotated[
    bool,
    typer.Option(
        "--sandbox/--no-sandbox",
        envvar="QUIRE_SANDBOX",
        help="Run programs that clients send in the sandbox, or refuse them.",
        rich_help_panel=_PANEL,
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_PROCESSES",
        help="Sandbox processes; each computes for one program at a time.",
        rich_help_panel=_PANEL,
    ),
]
Warm = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="QUIRE_SANDBOX_WARM",
        help="Number of instances that each process keeps ready, so that a launch need not "
        "wait for one.",
        rich_help_panel=_PANEL,
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        parser=_memory,
        show_default=format_size(_DEFAULTS.max_memory_bytes),
        metavar="SIZE",
        envvar="QUIRE_SANDBOX_MEMORY",
        help="Memory limit of one program.",
        rich_help_panel=_PANEL,
    ),
]
TurnMs = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_TURN_MS",
        help="Processor time in ms that a program may use without awaiting.",
        rich_help_panel=_PANEL,
    ),
]
CpuMs = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_CPU_MS",
        help="Processor time in ms that a program may use in all.",
        rich_help_panel=_PANEL,
    ),
]
Calls = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_CALLS",
        help="Calls per second that a program may make.",
        rich_help_panel=_PANEL,
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="QUIRE_SANDBOX_REQUESTS",
        help="HTTP requests that a program may have in flight; 0: none allowed.",
        rich_help_panel=_PANEL,
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--sandbox-host",
        envvar="QUIRE_SANDBOX_HOSTS",
        help="A host that programs may name in their manifests, e.g. *.example.org. Repeatable; "
        "default: any public host.",
        rich_help_panel=_PANEL,
    ),
]
PrivateHosts = Annotated[
    bool,
    typer.Option(
        "--sandbox-private-hosts",
        envvar="QUIRE_SANDBOX_PRIVATE_HOSTS",
        help="Allow programs to reach loopback and private addresses.",
        rich_help_panel=_PANEL,
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_SANDBOX_CACHE_DIR",
        help="Directory for compiled programs and uploads; default: ~/.cache/quire.",
        rich_help_panel=_PANEL,
    ),
]
UploadBytes = Annotated[
    int,
    typer.Option(
        parser=size_value,
        show_default=format_size(_DEFAULTS.max_upload_bytes),
        metavar="SIZE",
        envvar="QUIRE_MAX_UPLOAD_BYTES",
        help="Largest program that may be uploaded.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Whether clients' programs are run, and their limits."""

    sandbox: Sandbox = True
    sandbox_processes: Processes = _DEFAULTS.processes
    sandbox_warm: Warm = _DEFAULTS.num_warm
    sandbox_memory: Memory = _DEFAULTS.max_memory_bytes
    sandbox_turn_ms: TurnMs = _DEFAULTS.max_turn_ms
    sandbox_cpu_ms: CpuMs = _DEFAULTS.max_cpu_ms
    sandbox_calls: Calls = _DEFAULTS.max_calls_per_s
    sandbox_requests: Requests = _DEFAULTS.max_outstanding_io
    sandbox_host: Hosts = None
    sandbox_private_hosts: PrivateHosts = False
    sandbox_cache_dir: CacheDir = None
    max_upload_bytes: UploadBytes = _DEFAULTS.max_upload_bytes
    allow_upload: AllowUpload = False

    def config(self) -> SandboxConfig:
        """Return the limits."""
        return SandboxConfig(
            processes=self.sandbox_processes,
            cache_dir=self.sandbox_cache_dir,
            num_warm=self.sandbox_warm,
            max_upload_bytes=self.max_upload_bytes,
            max_memory_bytes=self.sandbox_memory,
            max_turn_ms=self.sandbox_turn_ms,
            max_cpu_ms=self.sandbox_cpu_ms,
            max_calls_per_s=self.sandbox_calls,
            max_outstanding_io=self.sandbox_requests,
            hosts=tuple(self.sandbox_host) if self.sandbox_host else None,
            allow_private_hosts=self.sandbox_private_hosts,
        )
