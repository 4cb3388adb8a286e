"""What programs hold: creating, pinning and freeing virtual pages and embeds.

Owns the rule of when a thing goes: its dealloc (or its queue's or program's end) has taken effect
and no unfinished command names it. Does not know order; ``flow`` calls it at the right moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from quire.control.process_table import Program
from quire.control.queues import CommandQueue, Entry
from quire.control.resources.embeds import Embed
from quire.control.resources.pages import Page
from quire.control.scheduler.engine_state import EngineState
from quire.core import commands as c
from quire.core.ids import EmbedId, EngineId, PageId


def _context_and_output(command: c.Forward | c.Decode) -> Sequence[PageId]:
    if command.output == command.context:
        return command.context
    return list(dict.fromkeys((*command.context, *command.output)))


_PAGES: Mapping[type[c.Command], Callable[[Any], Sequence[PageId]]] = {
    c.Forward: _context_and_output,
    c.Decode: _context_and_output,
    c.ExportPages: attrgetter("pages"),
    c.ImportPages: attrgetter("pages"),
    c.ImportPrefix: attrgetter("pages"),
    c.AllocPages: attrgetter("pages"),
    c.CopyPage: attrgetter("source", "target"),
    c.MaskPage: lambda command: [command.page],
    c.TruncatePage: lambda command: [command.page],
}
"""The pages that a command uses while it is unfinished. By its type: to ask of a command whether it
is one of many types costs more than all that is done here."""

_EMBEDS: Mapping[type[c.Command], Callable[[Any], Sequence[EmbedId]]] = {
    c.Forward: lambda command: [*command.inputs, *command.outputs],
    c.EmbedText: attrgetter("embeds"),
    c.EmbedImage: attrgetter("embeds"),
    c.GetNextDist: attrgetter("embeds"),
    c.Sample: attrgetter("embeds"),
    c.AllocEmbeds: attrgetter("embeds"),
}


class Holdings:
    """Pages and embeds of every program. ``engines`` is shared with the controller."""

    def __init__(self, engines: Mapping[EngineId, EngineState]) -> None:
        self._engines = engines
        self._effects: Mapping[type[c.Command], Callable[[Any, CommandQueue], None]] = {
            c.AllocPages: self._alloc_pages,
            c.ImportPages: self._create_pages,
            c.ImportPrefix: self._create_pages,
            c.AllocEmbeds: self._alloc_embeds,
            c.DeallocPages: self._release_pages,
            c.DeallocEmbeds: self._release_embeds,
        }

    def register(self, entry: Entry) -> None:
        """A command is queued: create what it allocates, release what it frees, pin what it names.

        Ids are known from here on, so that the issuer may use them without a round trip.
        """
        kind = type(entry.command)
        if (take_effect := self._effects.get(kind)) is not None:
            take_effect(entry.command, entry.queue)
        if (name_pages := _PAGES.get(kind)) is not None:
            pages = entry.program.pages
            entry.pages = tuple([pages[page_id] for page_id in name_pages(entry.command)])
            for page in entry.pages:
                page.num_pins += 1
        if (name_embeds := _EMBEDS.get(kind)) is not None:
            embeds = entry.program.embeds
            entry.embeds = tuple([embeds[embed_id] for embed_id in name_embeds(entry.command)])
            for embed in entry.embeds:
                embed.num_pins += 1

    def _alloc_pages(self, command: c.AllocPages, queue: CommandQueue) -> None:
        self._create_pages(command, queue)
        queue.program.num_held_pages += len(command.pages)

    def _create_pages(
        self, command: c.AllocPages | c.ImportPages | c.ImportPrefix, queue: CommandQueue
    ) -> None:
        for page_id in command.pages:
            page = Page(page_id, queue.engine, queue)
            queue.program.pages[page_id] = page
            queue.pages[page] = None

    def _alloc_embeds(self, command: c.AllocEmbeds, queue: CommandQueue) -> None:
        program = queue.program
        for embed_id in command.embeds:
            embed = Embed(embed_id, queue.engine, queue)
            program.embeds[embed_id] = embed
            queue.embeds[embed] = None
        program.num_held_embeds += len(command.embeds)

    def _release_pages(self, command: c.DeallocPages, queue: CommandQueue) -> None:
        program = queue.program
        for page_id in command.pages:
            program.pages[page_id].is_released = True
        program.num_held_pages -= len(command.pages)

    def _release_embeds(self, command: c.DeallocEmbeds, queue: CommandQueue) -> None:
        program = queue.program
        for embed_id in command.embeds:
            program.embeds[embed_id].is_released = True
        program.num_held_embeds -= len(command.embeds)

    def unpin(self, entry: Entry) -> None:
        """The command has ended: what it alone kept goes."""
        for page in entry.pages:
            page.num_pins -= 1
            if page.is_freed:
                self._free_page_if_unused(page)
        for embed in entry.embeds:
            embed.num_pins -= 1
            if embed.is_freed:
                self._free_embed_if_unused(embed)
        entry.pages, entry.embeds = (), ()

    def undo_allocation(self, entry: Entry) -> None:
        """A command that allocates has failed: what it was to create does not exist."""
        command, program = entry.command, entry.program
        if isinstance(command, c.AllocPages | c.ImportPages | c.ImportPrefix):
            for page in entry.pages:
                if isinstance(command, c.AllocPages) and not page.is_released:
                    program.num_held_pages -= 1
                self.forget_page(page)
        elif isinstance(command, c.AllocEmbeds):
            for embed in entry.embeds:
                if not embed.is_released:
                    program.num_held_embeds -= 1
                self.free_embed(embed)

    def forget_page(self, page: Page) -> None:
        """The page never came to be: commands behind that name it will not find it."""
        if page.content is not None or page.appender is not None:
            self.free_page(page)
            return
        page.is_released = page.is_freed = True
        page.owner.program.pages.pop(page.id, None)
        page.owner.pages.pop(page, None)

    def free_deallocated(self, entry: Entry) -> None:
        """The place of a dealloc in its queue is reached (or its queue reset behind a failure)."""
        command, program = entry.command, entry.program
        if type(command) is c.DeallocPages:
            for page_id in command.pages:
                if page_id in program.pages:
                    self.free_page(program.pages[page_id])
        elif type(command) is c.DeallocEmbeds:
            for embed_id in command.embeds:
                if embed_id in program.embeds:
                    self.free_embed(program.embeds[embed_id])

    def free_page(self, page: Page) -> None:
        page.is_released = page.is_freed = True
        self._free_page_if_unused(page)

    def _free_page_if_unused(self, page: Page) -> None:
        if not page.is_freed or page.num_pins or page.owner.program.pages.get(page.id) is not page:
            return
        if page.content is not None:
            self._engines[page.engine].memory.release(page.content)
            page.content = None
        del page.owner.program.pages[page.id]
        page.owner.pages.pop(page, None)

    def free_embed(self, embed: Embed) -> None:
        embed.is_released = embed.is_freed = True
        self._free_embed_if_unused(embed)

    def _free_embed_if_unused(self, embed: Embed) -> None:
        program = embed.owner.program
        if not embed.is_freed or embed.num_pins or program.embeds.get(embed.id) is not embed:
            return
        if embed.slot is not None:
            self._engines[embed.engine].embeds.free(embed.slot)
            embed.slot = None
        del program.embeds[embed.id]
        embed.owner.embeds.pop(embed, None)

    def free_queue(self, queue: CommandQueue) -> None:
        """Free everything that was allocated through ``queue``, as its pins allow."""
        program = queue.program
        for page in reversed(list(queue.pages)):
            if not page.is_released:
                program.num_held_pages -= 1
            self.free_page(page)
        for embed in list(queue.embeds):
            if not embed.is_released:
                program.num_held_embeds -= 1
            self.free_embed(embed)
        if queue.engine in self._engines:
            self._engines[queue.engine].free_token_slots(queue)

    def check_invariants(self, programs: Sequence[Program]) -> None:
        for program in programs:
            for page in program.pages.values():
                assert page.num_pins or not page.is_freed, "a freed page stays without a pin"
                assert page.content is None or page.content.num_refs > 0


__all__ = ["Holdings"]
