"""Finds why a program does not run: what its oldest command that is next in its queue waits for.

Owns the derivation, from where control keeps the command now. Changes nothing and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from quire.control.engines.encoder_pool import EncoderPool
from quire.control.engines.engine import ControlledEngine
from quire.control.engines.state import EngineState
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry, Program
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.control.scheduler.planner import MessagePlanner
from quire.core.ids import EngineId


class WaitsFor(StrEnum):
    """What a program waits for. PROGRAM: its own code; it has no unfinished command. ENGINE: to
    come up. PAUSED: for its next call, until other programs leave room for all that it works on.
    SEAT: one of the engine's sequences. MEMORY: blocks or embeds. PAGES: to be copied back from the
    host, or computed again. COMMAND: another command, of its own program or of one that uses the
    same page. TURN: the next message, or one behind it."""

    PROGRAM = "program"
    ENGINE = "engine"
    PAUSED = "paused: memory"
    SEAT = "seat"
    MEMORY = "memory"
    PAGES = "pages"
    COMMAND = "command"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class Wait:
    """What a program waits for, and since when (event time)."""

    reason: WaitsFor
    since_s: float


def wait_of(
    program: Program,
    places: Mapping[EngineId, ControlledEngine],
    schedulers: Mapping[EngineId, EngineScheduler],
) -> Wait | None:
    """What ``program`` waits for; None while a message carries one of its commands, or an open
    sequence of it decodes.

    ``places``: everything on which queues are placed. ``schedulers``: of the engines with memory.
    """
    oldest: Wait | None = None
    for entry in program.entries.values():
        if entry.queue.entries[0] is not entry:
            continue  # it is behind another one of its queue, and waits for that
        engine = entry.queue.engine
        reason = _reason(entry, places[engine], schedulers.get(engine))
        if reason is None:
            return None
        if oldest is None:
            oldest = Wait(reason, entry.ready_s)
    return oldest or Wait(WaitsFor.PROGRAM, program.idle_since_s)


def _reason(
    entry: Entry, engine: ControlledEngine, scheduler: EngineScheduler | None
) -> WaitsFor | None:
    if entry.num_in_flight:
        return None
    if not _is_up(engine):
        return WaitsFor.ENGINE
    if entry.num_blockers or entry.queue in engine.stalled:
        return WaitsFor.COMMAND
    if entry.queue in engine.starved:
        return WaitsFor.MEMORY
    if scheduler is None:
        return WaitsFor.TURN
    return _reason_in_backlog(entry, scheduler.engine, scheduler.planner)


def _reason_in_backlog(
    entry: Entry, engine: EngineState, planner: MessagePlanner
) -> WaitsFor | None:
    backlog = planner.backlog
    if entry in backlog.paused:
        return WaitsFor.PAUSED
    if entry in backlog.seats and not backlog.seats.has_seat(entry):
        if not backlog.seats.num_free:
            return WaitsFor.SEAT
        return WaitsFor.MEMORY if planner.seating.is_short else WaitsFor.TURN
    if _are_coming(entry.pages):
        return WaitsFor.PAGES
    if entry in planner.blocked or entry in backlog.claims:
        return WaitsFor.MEMORY
    if backlog.is_held_up(entry):
        return WaitsFor.COMMAND
    return None if entry in engine.running else WaitsFor.TURN


def _is_up(engine: ControlledEngine) -> bool:
    if isinstance(engine, EngineState):
        return engine.is_up
    assert isinstance(engine, EncoderPool)
    return any(instance.is_up for instance in engine.instances.values())


def _are_coming(pages: Iterable[Page]) -> bool:
    """Whether one of them is copied between device and host, or computed again."""
    contents = [page.content for page in pages if page.content is not None]
    return any(content.is_moving or content.is_restoring for content in contents)
