"""Trait Allocate: pages and embeds, their export, import and copies. Served by control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.commands import (
    AllocEmbeds,
    AllocPages,
    CopyPage,
    DeallocEmbeds,
    DeallocPages,
    ExportedPages,
    ExportPages,
    Imported,
    ImportPages,
    ImportPrefix,
    ListExports,
    ReleaseExport,
    TruncatePage,
)
from quire.core.errors import InvalidArgument
from quire.core.ids import PageId
from quire.core.traits import Trait
from quire.programs.api.handles import (
    Embed,
    KvPage,
    Queue,
    append_positions,
    as_list,
    check_all,
    check_distinct,
)
from quire.programs.api.issuer import nothing
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply


class ImportedPrefix(NamedTuple):
    """Pages that hold the first ``num_tokens`` tokens of the requested text."""

    pages: list[KvPage]
    num_tokens: int


class ImportedText(NamedTuple):
    """The pages of an export, and the tokens that its exporter gave with them, or None."""

    pages: list[KvPage]
    tokens: list[int] | None


class AllocateFunctions(TraitFunctions):
    trait = Trait.ALLOCATE

    @queued
    def alloc_kvpage(self, queue: Queue, num_pages: int) -> list[KvPage]:
        """Allocate ``num_pages`` empty pages. Memory is bound when a page is first written."""
        _check_count("alloc_kvpage", num_pages)
        pages = self._issuer.new_pages(queue, num_pages)
        command = AllocPages(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            pages=[page.page_id for page in pages],
        )
        self._issuer.submit(queue, command, nothing)
        return pages

    @queued
    def dealloc_kvpage(self, queue: Queue, pages: KvPage | Sequence[KvPage]) -> Reply[None]:
        """Free pages, in queue order; the handles are unusable at once."""
        given = as_list(pages)
        check_all(self._issuer, given, KvPage)
        check_distinct(given)
        for page in given:
            page.forget()
        command = DeallocPages(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            pages=[page.page_id for page in given],
        )
        return self._issuer.submit(queue, command, nothing)

    @queued
    def alloc_emb(self, queue: Queue, num_embeds: int) -> list[Embed]:
        """Allocate ``num_embeds`` embedding slots, one per token.

        The slots belong to the engine and all programs share them. The last eighth is reserved for
        programs that hold at most an eighth of all slots. If too few slots are left, a program that
        holds embeds gets ``PoolExhausted``, and one that holds none waits.
        """
        _check_count("alloc_emb", num_embeds)
        embeds = self._issuer.new_embeds(queue, num_embeds)
        command = AllocEmbeds(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            embeds=[embed.embed_id for embed in embeds],
        )
        self._issuer.submit(queue, command, nothing)
        return embeds

    @queued
    def dealloc_emb(self, queue: Queue, embeds: Embed | Sequence[Embed]) -> Reply[None]:
        """Free embeds, in queue order; the handles are unusable at once."""
        given = as_list(embeds)
        check_all(self._issuer, given, Embed)
        check_distinct(given)
        for embed in given:
            embed.forget()
        command = DeallocEmbeds(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            embeds=[embed.embed_id for embed in given],
        )
        return self._issuer.submit(queue, command, nothing)

    @queued
    def export_kvpage(
        self,
        queue: Queue,
        pages: KvPage | Sequence[KvPage],
        name: str,
        *,
        ttl_s: float | None = 600.0,
        tokens: Sequence[int] | None = None,
    ) -> Reply[None]:
        """Publish a snapshot of ``pages`` under ``name`` to the programs of the tenant.

        The export ends after ``ttl_s`` seconds without an import, or by ``release_export``; with
        ``None`` it ends with this program. An export that outlives this program may be released by
        any program of the tenant, and is removed first when memory is needed.

        ``tokens``: the text of the pages, for ``import_text``; at most one token more than the
        pages have slots.

        Raises (when awaited):
            InvalidArgument: the tenant has an export of that name, the name is not valid, or there
                are too many tokens.
            QuotaExceeded: ``max_exports`` or ``max_exported_pages`` of the program or its tenant.
        """
        given = as_list(pages)
        check_all(self._issuer, given, KvPage)
        command = ExportPages(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            pages=[page.page_id for page in given],
            name=name,
            ttl_s=ttl_s,
            tokens=None if tokens is None else list(tokens),
        )
        return self._issuer.submit(queue, command, nothing)

    @queued
    def release_export(self, queue: Queue, name: str) -> Reply[None]:
        """Withdraw an export of this program. Imported pages stay with their holders."""
        command = ReleaseExport(id=self._issuer.command_id(), after=queue.dependencies, name=name)
        return self._issuer.submit(queue, command, nothing)

    @queued
    def list_exports(self, queue: Queue, prefix: str = "") -> Reply[list[ExportedPages]]:
        """The exports of the tenant that ``import_kvpage`` finds on this queue, sorted by name.

        Each has ``name``, ``num_pages``, ``num_tokens`` (written slots), ``expires_in_s`` (seconds
        until it ends without an import; None: it ends with its owner) and ``own`` (this program may
        release it). ``prefix``: only names that begin with it.
        """
        command = ListExports(id=self._issuer.command_id(), after=queue.dependencies, prefix=prefix)
        return self._issuer.submit(queue, command, lambda reply: list(reply.exports))

    @queued
    def import_kvpage(
        self, queue: Queue, name: str, *, max_pages: int | None = None
    ) -> Reply[list[KvPage]]:
        """Map the pages of the export ``name`` into this program, in the order of the export.

        ``max_pages``: an export with more pages is refused; by default the model's context length.

        Raises (when awaited):
            UnknownHandle: no such export in this tenant.
        """
        offered, command = self._import(queue, name, max_pages)
        return self._issuer.submit(queue, command, lambda reply: _imported(reply, offered))

    @queued
    def import_text(
        self, queue: Queue, name: str, *, max_pages: int | None = None
    ) -> Reply[ImportedText]:
        """As ``import_kvpage``, with the tokens that the exporter gave with the pages (None: it
        gave none)."""
        offered, command = self._import(queue, name, max_pages)
        return self._issuer.submit(
            queue, command, lambda reply: ImportedText(_imported(reply, offered), reply.tokens)
        )

    def _import(
        self, queue: Queue, name: str, max_pages: int | None
    ) -> tuple[list[KvPage], ImportPages]:
        """New pages, and the command that maps the export into as many of them as it needs."""
        info = queue.state.model.info
        num_offered = max_pages or -(-info.max_model_len // info.pool.page_size)
        offered = self._issuer.new_pages(queue, num_offered)
        command = ImportPages(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            name=name,
            pages=[page.page_id for page in offered],
        )
        return offered, command

    @queued
    def import_prefix(
        self, queue: Queue, tokens: Sequence[int], *, adapter: str | None = None
    ) -> Reply[ImportedPrefix]:
        """Map the longest run of cached full pages that holds a prefix of ``tokens``; it may be
        empty.

        At least one token is left unmapped, so that its next-token distribution can be computed.
        ``adapter``: only pages computed with it (default: the adapter of the queue's model, if it
        has one).
        """
        num_pages = len(tokens) // queue.page_size
        offered = self._issuer.new_pages(queue, num_pages)
        command = ImportPrefix(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            tokens=list(tokens),
            pages=[page.page_id for page in offered],
            adapter=adapter or queue.state.model.adapter,
        )
        return self._issuer.submit(
            queue,
            command,
            lambda reply: ImportedPrefix(_imported(reply, offered), reply.num_tokens),
        )

    @queued
    def copy_kvpage(
        self,
        queue: Queue,
        src: KvPage,
        dst: KvPage,
        *,
        num_slots: int | None = None,
        src_offset: int = 0,
        dst_offset: int = 0,
    ) -> Reply[None]:
        """Copy K, V and positions of ``num_slots`` written slots (default: all that fit).

        Raises:
            InvalidArgument: offsets outside the page, or ``num_slots`` omitted while the fill of
                ``src`` is not known.
        """
        check_all(self._issuer, [src, dst], KvPage)
        if num_slots is None:
            if src.fill is None:
                raise InvalidArgument(
                    f"the fill of page {src.id} is not known here: pass num_slots to copy_kvpage"
                )
            num_slots = min(src.fill - src_offset, dst.size - dst_offset)
        if src_offset < 0 or dst_offset < 0 or num_slots < 0:
            raise InvalidArgument(
                f"copy of {num_slots} slots from offset {src_offset} to {dst_offset}: none may be "
                "negative"
            )
        _note_copy(src, dst, num_slots, src_offset, dst_offset)
        command = CopyPage(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            source=src.page_id,
            source_offset=src_offset,
            target=dst.page_id,
            target_offset=dst_offset,
            num_slots=num_slots,
        )
        return self._issuer.submit(queue, command, nothing)

    @queued
    def truncate_kvpage(self, queue: Queue, page: KvPage, fill: int) -> Reply[None]:
        """Remove the slots of ``page`` from ``fill`` on; its fill cursor moves back to ``fill``."""
        check_all(self._issuer, [page], KvPage)
        if fill < 0 or (page.fill is not None and fill > page.fill):
            raise InvalidArgument(
                f"truncate to {fill} slots, page {page.id} has {page.fill}: a page can only "
                "become shorter"
            )
        page.before_write()
        page.cut(fill)
        command = TruncatePage(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            page=page.page_id,
            fill=fill,
        )
        return self._issuer.submit(queue, command, nothing)


def _check_count(function: str, number: int) -> None:
    if number < 0:
        raise InvalidArgument(f"{function}({number}): ask for 0 or more")


def _note_copy(src: KvPage, dst: KvPage, num_slots: int, src_offset: int, dst_offset: int) -> None:
    """Update the known positions of ``dst`` for the copy: old slots, partly overwritten, and new
    ones."""
    dst.before_write()
    source, target = src.positions, dst.positions
    if source is None or target is None:
        dst.lose_track()
        return
    if src_offset + num_slots > len(source) or dst_offset > len(target):
        raise InvalidArgument(
            f"copy of {num_slots} slots from offset {src_offset} of a page with {len(source)} "
            f"written slots to offset {dst_offset} of a page with {len(target)}: copy written "
            "slots, and leave no gap"
        )
    if dst_offset + num_slots > dst.size:
        raise InvalidArgument(
            f"copy of {num_slots} slots to offset {dst_offset}: a page has {dst.size}"
        )
    dst.cut(dst_offset)
    dst.append(source[src_offset : src_offset + num_slots])
    dst.append(target[dst_offset + num_slots :])


def _imported(reply: Imported, offered: list[KvPage]) -> list[KvPage]:
    by_id = {page.page_id: page for page in offered}
    pages: list[KvPage] = []
    for imported in reply.pages:
        page = by_id[PageId(imported.page)]
        append_positions([page], imported.positions)
        pages.append(page)
    return pages
