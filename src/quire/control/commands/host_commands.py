"""Commands that control carries out by itself, without a message: bookkeeping over pages.

Owns the exports and the table of leases. Knows neither queues' order nor rows; ``flow`` calls
``run`` when a command's turn has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from quire.control.commands.checks import require_page_quota
from quire.control.commands.far_imports import FarImport, FarImports, can_come
from quire.control.commands.holdings import Holdings
from quire.control.commands.lease_uses import LeaseUses
from quire.control.engines.state import EngineState
from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.exports import Export, ExportTable, PageSnapshot
from quire.control.memory.leases import LeaseTable
from quire.control.memory.pages import Page
from quire.control.programs.families import num_pages_left, require_room
from quire.control.programs.lookup import find_pages
from quire.control.programs.program import Entry, Program
from quire.core import commands as c
from quire.core.actions import ReplyValue
from quire.core.errors import (
    Forbidden,
    InvalidArgument,
    PoolExhausted,
    UnknownHandle,
)
from quire.core.ids import EngineId, PageId
from quire.core.lease_commands import CloseLease, PinPrefix, RenewLease, TakeLease

PASSING: frozenset[type[c.Command]] = frozenset(
    {c.AllocPages, c.DeallocPages, c.AllocEmbeds, c.DeallocEmbeds, c.Synchronize}
)
"""Commands that may take effect while earlier ones of the queue are in flight (they still end in
order): what they touch is pinned by the commands that use it."""

HOST_COMMANDS: frozenset[type[c.Command]] = PASSING | {
    c.ExportPages,
    c.ReleaseExport,
    c.ListExports,
    c.ImportPages,
    c.ImportPrefix,
    c.MaskPage,
    c.TruncatePage,
    TakeLease,
    RenewLease,
    CloseLease,
    PinPrefix,
}
"""All that are carried out here; the others need a message."""


class NotYet(Exception):
    """The command has to wait for another queue's command to end."""


class NoEmbeds(NotYet):
    """The command has to wait until another program gives embeds back."""


class HostCommands:
    """Carries out host commands; ``engines`` is shared with the controller."""

    def __init__(self, engines: Mapping[EngineId, EngineState], holdings: Holdings) -> None:
        self._engines = engines
        self._holdings = holdings
        self.exports = ExportTable()
        self.leases = LeaseTable()
        self.far_imports = FarImports(engines, self.leases)
        self.lease_uses = LeaseUses(engines, self.leases)
        self._effects: Mapping[type[c.Command], Callable[[Entry, Any, float], ReplyValue]] = {
            c.AllocEmbeds: self._alloc_embeds,
            c.DeallocPages: self._dealloc,
            c.DeallocEmbeds: self._dealloc,
            c.ExportPages: self._export,
            c.ReleaseExport: self._release_export,
            c.ListExports: self._list_exports,
            c.ImportPages: self._import,
            c.ImportPrefix: self._import_prefix,
            c.MaskPage: self._mask,
            c.TruncatePage: self._truncate,
            TakeLease: self._take_lease,
            **self.lease_uses.effects,
        }

    def run(self, entry: Entry, now_s: float) -> ReplyValue:
        """Carry out ``entry`` and return its reply.

        Raises:
            QuireError: the command fails.
            NotYet: try again when other commands have ended.
        """
        take_effect = self._effects.get(type(entry.command))
        return None if take_effect is None else take_effect(entry, entry.command, now_s)

    def _dealloc(
        self, entry: Entry, command: c.DeallocPages | c.DeallocEmbeds, now_s: float
    ) -> None:
        self._holdings.free(entry.program, entry.freed)

    def _alloc_embeds(self, entry: Entry, command: c.AllocEmbeds, now_s: float) -> None:
        pool, num_more = self._engines[entry.queue.engine].embeds, len(entry.embeds)
        if pool.num_free - num_more < pool.num_reserved:
            num_held = sum(
                embed.slot is not None and not embed.is_freed
                for embed in entry.program.embeds.values()
            )
            if pool.num_free < num_more or not pool.may_take(num_more, num_held):
                self._no_embeds(num_more, num_held, pool)
        for embed in entry.embeds:
            embed.slot = pool.take()

    def _no_embeds(self, num_more: int, num_held: int, pool: NumberPool) -> NoReturn:
        if not num_held:
            raise NoEmbeds
        # A program that holds some and waits for more could wait for one that does the same.
        raise PoolExhausted(
            f"{num_more} embeds are asked for, {pool.num_free} of {pool.size} are free, this "
            f"program holds {num_held}, and the last {pool.num_reserved} are left to those that "
            "hold fewer: free some of yours, or retry later",
            num_free=pool.num_free,
            num_embeds=pool.size,
        )

    def _export(self, entry: Entry, command: c.ExportPages, now_s: float) -> None:
        program = entry.program
        pages = find_pages(entry, command.pages)
        if any(page.appender is not None for page in pages):
            raise NotYet
        if self.exports.get(program.tenant, command.name) is not None:
            raise InvalidArgument(
                f"an export called {command.name!r} exists: release it or choose another name"
            )
        self._check_exports(program, len(pages))
        memory = self._engines[entry.queue.engine].memory
        snapshots = []
        for page in pages:
            if page.content is not None and page.fill:
                memory.retain(page.content)
                content: Content | None = page.content
            else:
                content = None
            snapshots.append(PageSnapshot(content, page.fill, tuple(page.positions), page.mask))
        self.exports.add(
            Export(
                tenant=program.tenant,
                name=command.name,
                owner=program.id,
                engine=entry.queue.engine,
                pages=tuple(snapshots),
                ttl_s=command.ttl_s,
                expires_s=None if command.ttl_s is None else now_s + command.ttl_s,
                tokens=command.tokens,
            )
        )

    def _check_exports(self, program: Program, num_pages: int) -> None:
        """Raise ``QuotaExceeded`` if ``program`` may not make one more export of so many pages."""
        exports, account = self.exports, program.account
        require_room(
            program,
            "max_exports",
            1,
            "exports are kept",
            lambda member: exports.num_of(member.id),
        )
        require_room(
            program,
            "max_exported_pages",
            num_pages,
            "pages are exported",
            lambda member: exports.num_pages_of(member.id),
        )
        kept = exports.kept_by(program.tenant)
        account.require("max_exports", kept.num_exports, 1, "exports are kept")
        account.require("max_exported_pages", kept.num_pages, num_pages, "pages are exported")

    def _find_export(self, entry: Entry, name: str) -> Export:
        export = self.exports.get(entry.program.tenant, name)
        if export is None:
            raise UnknownHandle(
                f"no export is called {name!r}: it was never made, was released, its time is "
                "over, or its pages were lost with their engine",
                name=name,
            )
        return export

    def _list_exports(self, entry: Entry, command: c.ListExports, now_s: float) -> c.Exports:
        """The exports of the tenant whose pages could be imported here."""
        program, engines = entry.program, self._engines
        engine = engines[entry.queue.engine]
        found = [
            c.ExportedPages(
                name=export.name,
                num_pages=len(export.pages),
                num_tokens=sum(page.fill for page in export.pages),
                expires_in_s=None if export.expires_s is None else export.expires_s - now_s,
                own=export.owner in (None, program.id),
            )
            for export in self.exports.exports()
            if export.tenant == program.tenant
            and can_come(engines[export.engine], engine)
            and export.name.startswith(command.prefix)
        ]
        return c.Exports(sorted(found, key=lambda export: export.name))

    def _release_export(self, entry: Entry, command: c.ReleaseExport, now_s: float) -> None:
        export = self._find_export(entry, command.name)
        if export.owner not in (None, entry.program.id):
            raise Forbidden(
                f"export {command.name!r} belongs to program {export.owner}: only it may release it"
            )
        self.remove_export(export)

    def owner_ended(self, program: Program, *, begins_again: bool = False) -> None:
        """Leave the exports of an ended program that have a ``ttl_s`` to its tenant and remove the
        others. A program that ``begins_again`` exports anew, so all of its exports are removed."""
        for export in self.exports.owned_by(program.id):
            if export.ttl_s is None or begins_again:
                self.remove_export(export)
            else:
                self.exports.leave(export)
        for export in self.exports.surplus(program.tenant):
            self.remove_export(export)

    def memory_lost(self, engine: EngineId) -> None:
        """Remove the exports of pages that were on ``engine`` and that cannot be computed again:
        their names are free for the programs that make such pages anew."""
        for export in [one for one in self.exports.exports() if one.engine == engine]:
            if any(map(_is_gone, export.pages)):
                self.remove_export(export)

    def remove_export(self, export: Export) -> None:
        self.exports.remove(export)
        memory = self._engines[export.engine].memory
        for snapshot in reversed(export.pages):
            if snapshot.content is not None:
                memory.release(snapshot.content)

    def _import(self, entry: Entry, command: c.ImportPages, now_s: float) -> c.Imported:
        far = self.far_imports.under_way(entry)
        if far is None:
            export = self._find_export(entry, command.name)
            if export.engine != entry.queue.engine:
                far = self.far_imports.begin(entry, export)
        if far is not None:
            return self._import_far(entry, command, far, now_s)
        self._check_import(entry, command, len(export.pages))
        self.exports.touch(export, now_s)
        memory = self._engines[export.engine].memory
        for page, snapshot in zip(entry.pages, export.pages, strict=False):
            page.fill, page.mask = snapshot.fill, snapshot.mask
            page.positions = snapshot.positions
            if snapshot.content is not None:
                page.content = memory.retain(snapshot.content)
                page.content.note_family(entry.program.family)
                page.is_lost = _is_gone(snapshot)
        return self._imported(entry, len(export.pages), export.tokens)

    def _check_import(self, entry: Entry, command: c.ImportPages, num_pages: int) -> None:
        if len(command.pages) < num_pages:
            raise InvalidArgument(
                f"export {command.name!r} has {num_pages} pages and {len(command.pages)} ids are "
                "offered: offer more",
                num_pages=num_pages,
            )
        require_page_quota(entry.program, num_pages)

    def _import_far(
        self, entry: Entry, command: c.ImportPages, far: FarImport, now_s: float
    ) -> c.Imported:
        """Import from another engine: wait until its K and V have been brought, then map them."""
        num_pages = len(far.to_come.pages)
        self._check_import(entry, command, num_pages)
        if not self.far_imports.has_arrived(far):
            raise NotYet
        if self.exports.get(far.export.tenant, far.export.name) is far.export:
            self.exports.touch(far.export, now_s)
        self.far_imports.map(far, entry.pages)
        return self._imported(entry, num_pages, far.export.tokens)

    def _import_prefix(self, entry: Entry, command: c.ImportPrefix, now_s: float) -> c.Imported:
        engine = self._engines[entry.queue.engine]
        memory, adapter = engine.memory, engine.adapter_index(command.adapter)
        size = memory.page_size
        max_pages = (len(command.tokens) - 1) // size if command.tokens else 0
        left = num_pages_left(entry.program)
        if left is not None:
            max_pages = min(max_pages, left)
        contents = memory.index.match(
            entry.program.tenant,
            None,
            entry.queue.take_packed(command.tokens),
            max_pages,
            adapter,
        )
        for index, (page, content) in enumerate(zip(entry.pages, contents, strict=False)):
            page.content = memory.retain(content)
            page.content.note_family(entry.program.family)
            page.fill = size
            page.positions = range(index * size, (index + 1) * size)
        entry.program.num_cached_tokens += len(contents) * size
        return self._imported(entry, len(contents))

    def _take_lease(self, entry: Entry, command: TakeLease, now_s: float) -> c.Imported:
        num_pages = self.lease_uses.take(entry, command)
        if num_pages is None:
            raise NotYet
        return self._imported(entry, num_pages)

    def _imported(
        self, entry: Entry, num_pages: int, tokens: list[int] | None = None
    ) -> c.Imported:
        """The reply to an import; offered ids that it does not need are removed."""
        size = self._engines[entry.queue.engine].page_size
        used, unused = entry.pages[:num_pages], entry.pages[num_pages:]
        program = entry.program
        self._holdings.count(program, [page for page in used if not page.is_released])
        for page in unused:
            self._holdings.forget_page(program, page)
        return c.Imported(
            pages=[
                c.ImportedPage(page.id, page.fill, list(page.positions), page.visible_flags(size))
                for page in used
            ],
            num_tokens=sum(page.fill for page in used),
            tokens=tokens,
        )

    def _quiet_page(self, entry: Entry, page_id: PageId) -> Page:
        (page,) = find_pages(entry, [page_id])
        if page.appender is not None:
            raise NotYet
        return page

    def _mask(self, entry: Entry, command: c.MaskPage, now_s: float) -> None:
        page = self._quiet_page(entry, command.page)
        hidden = sum(1 << slot for slot, shown in enumerate(command.visible) if not shown)
        # Slots beyond the fill start visible when they are written.
        page.mask = ~(hidden & ((1 << page.fill) - 1))

    def _truncate(self, entry: Entry, command: c.TruncatePage, now_s: float) -> None:
        named = entry.program.pages[command.page]
        if command.fill == 0 and not named.is_void:
            # An emptied page is as good as new, even if its content was lost.
            named.is_lost = False
        page = self._quiet_page(entry, command.page)
        if command.fill > page.fill:
            raise InvalidArgument(
                f"page {page.id} is filled to {page.fill}; it cannot be truncated to {command.fill}"
            )
        page.truncate(command.fill)
        if page.content is not None and page.content.num_pins:
            page.content.is_cut = True  # commands that have begun may read all of it


def _is_gone(snapshot: PageSnapshot) -> bool:
    content = snapshot.content
    return content is not None and content.is_lost and not content.canonical
