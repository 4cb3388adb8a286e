"""What one program has on one engine, and whether any of it binds the program to that engine.

Owns the rule of what another engine can make again: empty pages, pages whose tokens are known,
decodes whose pages are such. Changes nothing; ``moves`` does.
"""

from __future__ import annotations

from collections.abc import Collection

from quire.control.engines.decode_run import DecodeRun
from quire.control.memory.embeds import HeldEmbed
from quire.control.memory.exports import ExportTable
from quire.control.memory.pages import Page
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.control.programs.states import CommandState
from quire.core.commands import ImportPages
from quire.core.ids import EngineId


class EngineStay:
    """What ``program`` has on ``engine``. ``begun``: decodes that have begun, or were examined and
    found no room. Their pages count as they were then (``fills``), because all that was written
    since can be run again."""

    def __init__(self, program: Program, engine: EngineId) -> None:
        self.program = program
        self.engine = engine
        queues = program.queues.values()
        self.queues: list[CommandQueue] = [one for one in queues if one.placed_on == engine]
        self.pages: list[Page] = [one for one in program.pages.values() if one.engine == engine]
        self.embeds: list[HeldEmbed] = [
            one for one in program.embeds.values() if one.engine == engine
        ]
        self.begun: list[DecodeRun] = []
        self._is_torn = False
        for queue in self.queues:
            for entry in queue.entries:
                if entry.state is CommandState.STARTED or entry.run is not None:
                    self._note_begun(entry)
        self.fills = {page: fill for run in self.begun for page, fill in run.start_fills}

    def _note_begun(self, entry: Entry) -> None:
        if isinstance(entry.run, DecodeRun) and entry.error is None and not entry.is_cancelled:
            self.begun.append(entry.run)
        else:
            self._is_torn = True

    @property
    def has_work(self) -> bool:
        return any(queue.entries for queue in self.queues)

    @property
    def num_bound_embeds(self) -> int:
        """The number of the engine's embed slots that it has."""
        return sum(embed.slot is not None for embed in self.embeds)

    @property
    def is_fresh(self) -> bool:
        """Whether none of its commands has begun, and it has nothing in the engine's memory."""
        if self.num_bound_embeds or any(page.content is not None for page in self.pages):
            return False
        entries = [entry for queue in self.queues for entry in queue.entries]
        return all(e.state is CommandState.QUEUED and e.run is None for e in entries)

    def is_bound(self, exports: ExportTable) -> bool:
        """Whether something of it exists, or existed, on this engine alone: a value of an embed or
        a token slot, a page whose tokens are not known, an export, a command that is half done."""
        if self._is_torn or any(queue.token_slots for queue in self.queues):
            return True
        if any(embed.is_written or embed.is_lost for embed in self.embeds):
            return True
        return any(map(self._binds, self.pages)) or self._needs_exports(exports)

    def _binds(self, page: Page) -> bool:
        fill = self.fills.get(page, page.fill)
        if fill:
            return page.is_lost or page.content is None or not page.content.canonical
        return page.is_lost and not page.is_void and page not in self.fills

    def _needs_exports(self, exports: ExportTable) -> bool:
        """Whether it has exported pages of this engine, or waits to import some."""
        program = self.program
        if any(export.engine == self.engine for export in exports.owned_by(program.id)):
            return True
        return any(self._imports(entry, exports) for entry in program.entries.values())

    def _imports(self, entry: Entry, exports: ExportTable) -> bool:
        command = entry.command
        if type(command) is not ImportPages or entry.queue.placed_on != self.engine:
            return False
        export = exports.get(self.program.tenant, command.name)
        return export is not None and export.engine == self.engine


def stays_on(programs: Collection[Program], engine: EngineId) -> list[EngineStay]:
    """The stays of those of ``programs`` that have commands on ``engine``, in their order."""
    stays = [EngineStay(program, engine) for program in programs if _is_on(program, engine)]
    return [stay for stay in stays if stay.has_work]


def _is_on(program: Program, engine: EngineId) -> bool:
    return any(queue.placed_on == engine for queue in program.queues.values())
