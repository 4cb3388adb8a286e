"""The holdings of programs: creating, pinning and freeing virtual pages and embeds.

Owns the rule of when a page or embed is freed: its dealloc (or its queue's or program's end) has
taken effect and no unfinished command names it. Does not know the order of commands: ``flow`` calls
it at the right moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from quire.control.engines.state import EngineState
from quire.control.memory.embeds import HeldEmbed
from quire.control.memory.pages import Page
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.core import commands as c
from quire.core.ids import EmbedId, EngineId, PageId
from quire.core.lease_commands import SendPages, TakeLease


def _context_and_output(command: c.Forward | c.Decode) -> Sequence[PageId]:
    if not command.context:  # as most decodes
        return command.output
    if command.output == command.context:
        return command.context
    return list(dict.fromkeys((*command.context, *command.output)))


_PAGES: Mapping[type[c.Command], Callable[[Any], Sequence[PageId]]] = {
    c.Forward: _context_and_output,
    c.Decode: _context_and_output,
    c.ExportPages: attrgetter("pages"),
    c.CopyPage: attrgetter("source", "target"),
    c.MaskPage: lambda command: [command.page],
    c.RepositionPage: lambda command: [command.page],
    c.TruncatePage: lambda command: [command.page],
    SendPages: attrgetter("pages"),
}
"""The pages that a command uses while it is unfinished, by the command's type: a chain of
``isinstance`` would cost more than all that is done here. Commands that create pages use those."""

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
        self._effects: Mapping[type[c.Command], Callable[[Any, Entry], object]] = {
            c.AllocPages: self._alloc_pages,
            c.ImportPages: self._create_pages,
            c.ImportPrefix: self._create_pages,
            TakeLease: self._create_pages,
            c.AllocEmbeds: self._alloc_embeds,
            c.DeallocPages: self._release_pages,
            c.DeallocEmbeds: self._release_embeds,
        }

    def register(self, entry: Entry) -> None:
        """Register a queued command: create what it allocates, release what it frees, pin what it
        names.

        Ids are known from here on, so that the issuer may use them without a round trip.
        """
        kind = type(entry.command)
        if (take_effect := self._effects.get(kind)) is not None:
            take_effect(entry.command, entry)
        if (name_pages := _PAGES.get(kind)) is not None:
            held = entry.program.pages
            entry.pages = tuple(map(held.__getitem__, name_pages(entry.command)))
        for page in entry.pages:
            page.num_pins += 1
        if (name_embeds := _EMBEDS.get(kind)) is not None:
            embeds = entry.program.embeds
            entry.embeds = tuple([embeds[embed_id] for embed_id in name_embeds(entry.command)])
            for embed in entry.embeds:
                embed.num_pins += 1

    def _alloc_pages(self, command: c.AllocPages, entry: Entry) -> None:
        self.count(entry.program, self._create_pages(command, entry))

    def _create_pages(
        self, command: c.AllocPages | c.ImportPages | c.ImportPrefix | TakeLease, entry: Entry
    ) -> tuple[Page, ...]:
        queue, program = entry.queue, entry.program
        engine, owner = queue.engine, queue.id
        created = entry.pages = tuple([Page(page, engine, owner) for page in command.pages])
        program.pages.update(zip(command.pages, created, strict=True))
        queue.pages.update(dict.fromkeys(created))
        program.account.num_pages += len(created)
        return created

    def _alloc_embeds(self, command: c.AllocEmbeds, entry: Entry) -> None:
        queue, program = entry.queue, entry.program
        for embed_id in command.embeds:
            embed = HeldEmbed(embed_id, queue.engine, queue.id)
            program.embeds[embed_id] = embed
            queue.embeds[embed] = None
            embed.is_counted = True
        program.num_held_embeds += len(command.embeds)
        program.account.num_embeds += len(command.embeds)

    def _release_pages(self, command: c.DeallocPages, entry: Entry) -> None:
        pages = entry.program.pages
        entry.freed = tuple([pages[page_id] for page_id in command.pages])
        self._release(entry)

    def _release_embeds(self, command: c.DeallocEmbeds, entry: Entry) -> None:
        embeds = entry.program.embeds
        entry.freed = tuple([embeds[embed_id] for embed_id in command.embeds])
        self._release(entry)

    def _release(self, entry: Entry) -> None:
        for thing in entry.freed:
            thing.is_released = True
            if thing.is_counted:
                self._uncount(entry.program, thing)

    def count(self, program: Program, pages: Collection[Page]) -> None:
        """Count ``pages`` as held by ``program``, for its quotas."""
        for page in pages:
            page.is_counted = True
        program.num_held_pages += len(pages)

    def _uncount(self, program: Program, thing: Page | HeldEmbed) -> None:
        thing.is_counted = False
        if isinstance(thing, Page):
            program.num_held_pages -= 1
        else:
            program.num_held_embeds -= 1

    def unpin(self, entry: Entry) -> None:
        """Unpin what the ended command named; free what it alone kept."""
        for page in entry.pages:
            page.num_pins -= 1
            if page.is_freed:
                self._free_page_if_unused(entry.program, page)
        for embed in entry.embeds:
            embed.num_pins -= 1
            if embed.is_freed:
                self._free_embed_if_unused(entry.program, embed)
        entry.pages, entry.embeds = (), ()

    def undo_allocation(self, entry: Entry) -> None:
        """Remove what a failed command was to create."""
        command = entry.command
        if isinstance(command, c.AllocPages | c.ImportPages | c.ImportPrefix | TakeLease):
            for page in entry.pages:
                self.forget_page(entry.program, page)
        elif isinstance(command, c.AllocEmbeds):
            self.free(entry.program, entry.embeds)

    def forget_page(self, program: Program, page: Page) -> None:
        """Remove a page that never came to be: later commands that name it do not find it."""
        if page.content is None and page.appender is None:
            page.is_void = page.is_lost = True
        self._free_page(program, page)

    def keep_orphans(self, entry: Entry) -> None:
        """Keep what a failed dealloc names until its queue is reset or closed."""
        program, queue = entry.program, entry.queue
        for thing in entry.freed:
            if not self._is_held(program, thing) or thing.is_freed:
                continue
            thing.orphan_of = queue.id
            queue.orphans[thing] = None
            if thing.is_counted:
                continue
            if isinstance(thing, Page):
                self.count(program, (thing,))
            else:
                thing.is_counted = True
                program.num_held_embeds += 1

    def _is_held(self, program: Program, thing: Page | HeldEmbed) -> bool:
        """Whether the id still refers to this holding."""
        if isinstance(thing, Page):
            return program.pages.get(thing.id) is thing
        return program.embeds.get(thing.id) is thing

    def free(self, program: Program, things: Iterable[Page | HeldEmbed]) -> None:
        """Free ``things`` of ``program``, as their pins allow; leave alone what is gone already."""
        for thing in list(things):
            if isinstance(thing, Page):
                self._free_page(program, thing)
            else:
                self._free_embed(program, thing)

    def _free_page(self, program: Program, page: Page) -> None:
        page.is_released = page.is_freed = True
        if page.orphan_of is not None:
            self._let_go(program, page)
        elif page.is_counted:  # as of most
            page.is_counted = False
            program.num_held_pages -= 1
        self._free_page_if_unused(program, page)

    def _free_pages(self, program: Program, pages: Sequence[Page]) -> None:
        """Free pages of a queue that is closed: thousands, if a long prompt was its last."""
        engine: EngineId | None = None
        num_uncounted = num_gone = 0
        for page in pages:
            if page.num_pins or page.orphan_of is not None:
                self._free_page(program, page)
                continue
            page.is_released = page.is_freed = True
            if page.is_counted:
                page.is_counted = False
                num_uncounted += 1
            if (gone := program.pages.pop(page.id, None)) is None:
                continue  # a command that was cancelled has freed it
            assert gone is page, "an id is used again before its page is free"
            num_gone += 1
            content = page.content
            if content is not None:
                if page.engine is not engine:
                    engine = page.engine
                    memory = self._engines[engine].memory
                memory.release(content)
                page.content = None
        program.num_held_pages -= num_uncounted
        program.account.num_pages -= num_gone

    def _let_go(self, program: Program, thing: Page | HeldEmbed) -> None:
        """Stop counting ``thing`` for quotas and take it from the orphans of its queue."""
        if thing.is_counted:
            self._uncount(program, thing)
        if thing.orphan_of is not None:
            if (queue := program.queues.get(thing.orphan_of)) is not None:
                queue.orphans.pop(thing, None)
            thing.orphan_of = None

    def _free_page_if_unused(self, program: Program, page: Page) -> None:
        if not page.is_freed or page.num_pins or program.pages.get(page.id) is not page:
            return
        if page.content is not None:
            self._engines[page.engine].memory.release(page.content)
            page.content = None
        del program.pages[page.id]
        program.account.num_pages -= 1
        if (queue := program.queues.get(page.owner)) is not None:
            queue.pages.pop(page, None)

    def _free_embed(self, program: Program, embed: HeldEmbed) -> None:
        embed.is_released = embed.is_freed = True
        self._let_go(program, embed)
        self._free_embed_if_unused(program, embed)

    def _free_embed_if_unused(self, program: Program, embed: HeldEmbed) -> None:
        if not embed.is_freed or embed.num_pins or program.embeds.get(embed.id) is not embed:
            return
        if embed.slot is not None:
            self._engines[embed.engine].embeds.free(embed.slot)
            embed.slot = None
        del program.embeds[embed.id]
        program.account.num_embeds -= 1
        if (queue := program.queues.get(embed.owner)) is not None:
            queue.embeds.pop(embed, None)

    def free_queue(self, queue: CommandQueue) -> None:
        """Free everything that was allocated through ``queue``, as its pins allow."""
        pages = list(queue.pages)
        pages.reverse()
        self._free_pages(queue.program, pages)
        self.free(queue.program, queue.embeds)
        if queue.placed_on is not None:
            self._engines[queue.placed_on].free_token_slots(queue)

    def check_invariants(self, programs: Sequence[Program]) -> None:
        for program in programs:
            for page in program.pages.values():
                assert page.num_pins or not page.is_freed, "a freed page stays without a pin"
                assert page.content is None or page.content.num_refs > 0
            self._check_counts(program)

    def _check_counts(self, program: Program) -> None:
        things: list[Page | HeldEmbed] = [*program.pages.values(), *program.embeds.values()]
        for thing in things:
            assert self._is_held(program, thing)
            assert not thing.is_freed or not thing.is_counted, "what is freed counts no more"
            if thing.orphan_of is not None:
                assert thing in program.queues[thing.orphan_of].orphans
                assert thing.is_counted, "an orphan is held"
        pages = sum(page.is_counted for page in program.pages.values())
        assert pages == program.num_held_pages, "pages are counted while they are held"
        embeds = sum(embed.is_counted for embed in program.embeds.values())
        assert embeds == program.num_held_embeds, "embeds are counted while they are held"
        for queue in program.queues.values():
            things = [*queue.pages, *queue.embeds]
            for thing in things:
                assert self._is_held(program, thing), "a queue keeps nothing that is gone"
            for thing in queue.orphans:
                assert thing.orphan_of == queue.id
                assert self._is_held(program, thing), (
                    "an orphan waits for its queue's reset or close"
                )
