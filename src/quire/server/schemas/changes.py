"""``/v1/programs/changes``: rows of the process table, and engines."""

from __future__ import annotations

from typing import Literal

from quire.server.schemas.base import WholeModel


class ProcessWait(WholeModel):
    """What a program waits for: ``program`` (its own code: it is idle), ``engine`` (to come up),
    ``paused: memory`` (for its next call, until other programs leave room for all that it works
    on), ``seat`` (a sequence of the engine), ``memory``, ``pages`` (to come back from the host, or
    to be computed again), ``command`` (another command, of its own program or on the same page),
    ``turn`` (the next message). ``since`` is Unix time."""

    reason: Literal[
        "program", "engine", "paused: memory", "seat", "memory", "pages", "command", "turn"
    ]
    since: float


class ProcessRow(WholeModel):
    """A program or session in the process table.

    ``process`` identifies it in these answers; ``id`` is its public id, null for what the node runs
    for itself. ``parent`` is a ``process``. ``state``: idle, waiting or running. ``level``: the
    policy's level of its foremost call. ``num_calls``: unfinished commands for an engine.
    ``path_s``: its critical path. ``wait`` is null while it runs. ``created`` is Unix time.
    """

    process: int
    id: str | None
    parent: int | None
    form: Literal["session", "inferlet", "workflow"]
    name: str
    client_id: str | None
    tenant: str
    state: str
    wait: ProcessWait | None
    level: float | None
    engines: list[str]
    num_calls: int
    num_queues: int
    num_pages: int
    num_device_blocks: int
    num_host_blocks: int
    num_disk_blocks: int
    num_generated_tokens: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_encoded_tokens: int
    num_preemptions: int
    service_s: float
    path_s: float
    cost_s: float
    waiting_s: float
    created: float


class EngineMessage(WholeModel):
    """The content of a message that the engine has now, of all programs together: ``num_decodes``
    sequences, each advanced by at most ``num_steps`` tokens, and ``num_chunks`` forward rows."""

    num_decodes: int
    num_chunks: int
    num_tokens: int
    num_steps: int


class EngineRow(WholeModel):
    """An engine with memory. ``num_messages``, ``num_rows`` (decodes and forward rows in them) and
    ``num_tokens``: dispatched since it began, over all of its programs; blocks that are cached
    belong to no program. ``detail`` says why it is not ready."""

    engine: str
    model: str
    state: str
    detail: str
    num_running: int
    num_waiting: int
    num_in_flight: int
    messages: list[EngineMessage]
    num_blocks: int
    num_held_blocks: int
    num_cached_blocks: int
    num_host_blocks: int
    num_free_host_blocks: int
    num_cached_host_blocks: int
    num_disk_blocks: int
    num_free_disk_blocks: int
    num_cached_disk_blocks: int
    num_messages: int
    num_rows: int
    num_tokens: int
    step_s: float | None


class NodeRow(WholeModel):
    """``time`` is Unix time; ``detail`` says why the node is not ready."""

    ready: bool
    detail: str
    policy: str
    time: float
    uptime_s: float


class Changes(WholeModel):
    """``programs`` have changed, ``ended`` (their ``process``) have left the process table. With
    ``whole`` the caller drops what it knew before: its ``since`` was too old, or absent. With
    ``more`` it asks again at once, with ``next`` as ``since`` as always."""

    object: Literal["program.changes"]
    next: str
    whole: bool
    more: bool
    programs: list[ProcessRow]
    ended: list[int]
    engines: list[EngineRow]
    node: NodeRow
