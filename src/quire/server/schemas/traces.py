"""``/v1/programs/{program}/trace``: what a program did and when. All times are Unix times."""

from __future__ import annotations

from typing import Literal

from quire.server.schemas.base import WholeModel


class TraceError(WholeModel):
    code: str
    message: str


class TraceCall(WholeModel):
    """A command that needed an engine. ``kind``: its name, such as ``decode``. ``engine``: null if
    it was refused before it had one. ``sent``: when the first message with it was sent;
    ``first_token``: when a decode had its first token. ``waiting_s``: time in which it could have
    run and did not; ``service_s``: engine time of the messages that carried it. ``messages``: the
    numbers of these, as first and last of each run of numbers. ``end`` and ``outcome`` are null
    while it runs."""

    command: int
    kind: str
    model: str
    engine: str | None
    thread: int
    arrival: float
    sent: float | None
    first_token: float | None
    end: float | None
    waiting_s: float
    service_s: float
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    messages: list[tuple[int, int]]
    outcome: Literal["done", "failed", "cancelled"] | None
    error: TraceError | None


class TraceWait(WholeModel):
    """The time between the end of the program's calls and its next one: for a tool, its client, its
    own code. ``end`` is null while it lasts."""

    start: float
    end: float | None


class TraceTransfer(WholeModel):
    """Blocks that an engine copied together for the program, ``out`` to ``tier`` or back ``in`` to
    the device. ``lost``: the engine was lost during the copy, or its disk failed. Tier ``engine``:
    K and V that went ``out`` to another engine by ``transport`` (``nixl``, ``shared_memory``,
    ``tcp`` or ``in_process``, several joined by ``+``); ``lost``: it does not have all of it."""

    engine: str
    direction: Literal["out", "in"]
    start: float
    end: float
    num_blocks: int
    num_bytes: int
    lost: bool
    tier: Literal["host", "disk", "engine"] = "host"
    transport: str = ""


class TracedProgram(WholeModel):
    """``process`` and ``parent`` as in ``/v1/programs/changes``. ``calls``: the latest of
    ``num_calls`` that have ended, in the order of their ends, then those that run; ``transfers``
    are the latest. ``end`` and ``reason`` are null while it lives."""

    process: int
    id: str | None
    parent: int | None
    form: Literal["session", "inferlet", "workflow"]
    name: str
    client_id: str | None
    tenant: str
    start: float
    end: float | None
    reason: str | None
    num_calls: int
    calls: list[TraceCall]
    waits: list[TraceWait]
    transfers: list[TraceTransfer]


class TraceMessage(WholeModel):
    """A message to an engine. ``start``: when the engine began with it. ``num_commands`` and
    ``num_tokens`` count its content for all programs."""

    engine: str
    number: int
    sent: float
    start: float
    end: float
    num_commands: int
    num_tokens: int


class ProgramTrace(WholeModel):
    """``programs``: the requested one (once for each of its starts), then those below it.
    ``messages`` carried their calls. ``time``: now."""

    object: Literal["program.trace"]
    time: float
    programs: list[TracedProgram]
    messages: list[TraceMessage]
