"""Changes the state of an engine that is lost or comes up again.

Owns the change of ``EngineState`` alone. ``engine_life`` decides what becomes of commands and
programs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.exports import ExportTable
from quire.control.memory.tables import TableCache
from quire.control.programs.program import Entry, Program
from quire.core.engine_info import EngineInfo
from quire.core.errors import ConfigError


def clear_flight(engine: EngineState) -> list[Entry]:
    """Forget the messages in flight of a lost engine and return their commands."""
    entries: dict[Entry, None] = {}
    for message in engine.in_flight:
        for part in message.parts:
            entries[part.entry] = None
        for run in message.runs:
            entries[run.entry] = None
        for content in message.pins:
            engine.memory.unpin(content)
    engine.in_flight.clear()
    for entry in entries:
        entry.num_in_flight = 0
    return list(entries)


def lose_memory(engine: EngineState, programs: Iterable[Program], exports: ExportTable) -> None:
    """Forget all that was on a lost engine. Canonical pages keep their tokens and are recomputed
    when they are used; the others are lost."""
    snapshots = [s for x in exports.exports() if x.engine == engine.id for s in x.pages]
    contents = [s.content for s in snapshots if s.content is not None]
    for program in programs:
        contents += _lose_holdings(engine, program)
    engine.memory.lose_everything(contents)
    engine.operations.take()
    engine.tables = TableCache()


def _lose_holdings(engine: EngineState, program: Program) -> list[Content]:
    """Forget what ``program`` held on ``engine``; returns the contents of its pages."""
    contents = []
    for page in program.pages.values():
        if page.engine == engine.id and page.content is not None:
            contents.append(page.content)
            page.is_lost = page.fill > 0 and not page.content.canonical
    for embed in program.embeds.values():
        if embed.engine == engine.id:
            embed.is_lost, embed.is_written = embed.is_written, False
    for key in [key for key in program.token_slots if key[0] == engine.id]:
        engine.token_slots.free(program.token_slots.pop(key))
    return contents


def restart(engine: EngineState, info: EngineInfo) -> Collection[int]:
    """Note that ``engine`` is up again, with empty memory.

    Returns the indices of the adapters whose weights have changed. If the model's own weights have
    changed, these are all adapters and -1 (no adapter).

    Raises:
        ConfigError: its pool or the names of its adapters differ, so that what programs hold
            would not fit.
    """
    names = [adapter.name for adapter in info.adapters]
    known = [adapter.name for adapter in engine.info.adapters]
    if names != known:
        raise ConfigError(
            f"engine {engine.id} restarted with the adapters {names}, it had {known}: start it "
            "with its earlier configuration"
        )
    if info.pool != engine.info.pool:
        raise ConfigError(
            f"engine {engine.id} restarted with the pool {info.pool}, it had {engine.info.pool}: "
            "start it with its earlier configuration"
        )
    before, engine.info = engine.info, info
    engine.memory.resize(info)
    engine.is_up = True
    engine.epoch += 1
    engine.next_step = 0
    if info.content != before.content:
        return range(-1, len(info.adapters))
    pairs = zip(before.adapters, info.adapters, strict=True)
    return {index for index, (old, new) in enumerate(pairs) if old.digest != new.digest}
