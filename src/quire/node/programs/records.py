"""Values about launched programs: the launch, the record, log lines, limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from quire.core.errors import ErrorRecord
from quire.core.ids import ProgramForm, ProgramId, TenantId, ThreadId
from quire.node.programs.figures import ResourceUsage
from quire.node.programs.message_log import LogLimits
from quire.programs.runtime.running import ProgramState

LogLevel = Literal["debug", "info", "warning", "error"]

LOG_LEVELS: dict[str, LogLevel] = {
    "debug": "debug", "info": "info", "warning": "warning", "error": "error"
}  # fmt: skip


class ProgramLogLine(msgspec.Struct, frozen=True):
    """``time_s`` is Unix time; ``fields`` are JSON values that the program gave with the text."""

    time_s: float
    level: LogLevel
    text: str
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return len(self.text) + (len(str(self.fields)) if self.fields else 0)


def result_bytes(result: Any) -> int:
    """The approximate size of a result: its length as JSON."""
    return len(result) if isinstance(result, str) else len(json.dumps(result))


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """One launched program at one moment. Times are Unix times; ``parent`` is a public id,
    ``parent_thread`` the thread of it that launched the program.

    ``num_dropped_messages`` counts messages that are no longer kept for readers. ``used``: the
    resources of its ended incarnations; ``duration_s``: from launch to end.
    """

    id: str
    program: ProgramId
    tenant: TenantId
    name: str
    args: tuple[str, ...]
    client_id: str | None
    parent: str | None
    parent_thread: ThreadId | None
    priority: int
    state: ProgramState
    started_s: float
    ended_s: float | None
    result: Any
    error: ErrorRecord | None
    num_messages: int
    num_dropped_messages: int
    seed: int = 0
    named: Mapping[str, str] = field(default_factory=dict)
    duration_s: float | None = None
    used: ResourceUsage | None = None
    form: ProgramForm = "inferlet"


class ProgramLaunch(msgspec.Struct, frozen=True):
    """The launch of a program, without its code. ``named``: arguments by name; ``traceparent``:
    that of the client's request; ``form``: that of the program."""

    tenant: TenantId
    args: tuple[str, ...] = ()
    client_id: str | None = None
    parent: str | None = None
    priority: int = 0
    seed: int = 0
    named: Mapping[str, str] = msgspec.field(default_factory=dict)
    parent_thread: ThreadId | None = None
    traceparent: str | None = None
    form: ProgramForm = "inferlet"


def kept_bytes(launch: ProgramLaunch, result: Any) -> int:
    """The approximate size of a result and of the launch that it belongs to."""
    return result_bytes(result) + sum(map(len, (*launch.args, *launch.named.values())))


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Per tenant: running programs, kept records of ended programs, and the bytes of their
    messages, results, arguments and logs together. Per program: kept log lines. A program that is
    handed to another node ends after ``handed_over_s``, unless its mover has reported whether it
    was taken."""

    max_running: int = 1024
    max_ended: int = 256
    max_ended_bytes: int = 64 << 20
    max_log_lines: int = 256
    handed_over_s: float = 60.0
    messages: LogLimits = field(default_factory=LogLimits)
