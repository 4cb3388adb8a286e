"""Appends tokens to a list of pages: the next slots, copy-on-write, canonical chains.

Owns one command's progress through its output pages. Does not know rows or sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from quire.control.memory.content import ChainNode, Content
from quire.control.memory.copy_on_write import make_writable, needs
from quire.control.memory.memory import Memory
from quire.control.memory.operations import OperationList
from quire.control.memory.pages import Page
from quire.core.ids import ProgramId, TenantId

Spans = list[tuple[Page, int]]
"""Pages, and the number of slots of each from its fill on."""


class Prefix:
    """The text that the new tokens follow. ``parent``: the last full page of a canonical prefix."""

    __slots__ = ("is_canonical", "parent")

    def __init__(self, is_canonical: bool, parent: ChainNode | None) -> None:
        self.is_canonical = is_canonical
        self.parent = parent


class AppendCursor:
    """Appends at the fill cursors of ``pages``, in list order. The caller must be the only writer
    of these pages.

    ``num_free_slots``: slots behind the cursors. ``adapter``: index of the adapter that computes
    the tokens; a canonical ``prefix`` was computed with the same one.
    """

    def __init__(
        self,
        pages: Sequence[Page],
        prefix: Prefix,
        tenant: TenantId,
        family: ProgramId,
        memory: Memory,
        operations: OperationList,
        adapter: int = -1,
    ) -> None:
        self.pages = list(pages)
        self.prefix = prefix
        self.adapter = adapter
        self._tenant = tenant
        self._family = family
        self._memory = memory
        self._operations = operations
        self._first = 0
        size = memory.page_size
        self.num_free_slots = sum([size - page.fill for page in pages])

    def spans(self, num_tokens: int) -> Spans:
        """The slots of the next ``num_tokens`` tokens; fewer if the pages end."""
        size, pages = self._memory.page_size, self.pages
        while self._first < len(pages) and pages[self._first].fill == size:
            self._first += 1
        found: Spans = []
        for index in range(self._first, len(pages)):
            if num_tokens <= 0:
                break
            page = pages[index]
            count = min(size - page.fill, num_tokens)
            if count:
                found.append((page, count))
                num_tokens -= count
        return found

    def bound_pages(self) -> list[Page]:
        """The first pages, as far as they have contents; full ones have."""
        pages, end = self.pages, self._first
        while end < len(pages) and pages[end].content is not None:
            end += 1
        return pages[:end]

    def unbound(self, spans: Spans) -> tuple[list[Content], int]:
        """What ``bind`` needs for ``spans``: contents that must be resident, and a number of new
        blocks."""
        resident: list[Content] = []
        num_new = 0
        for page, _ in spans:
            content, num_blocks = needs(page)
            num_new += num_blocks
            if content is not None:
                resident.append(content)
        return resident, num_new

    def bind(self, spans: Spans) -> None:
        """Give the pages of ``spans`` exclusive device blocks.

        The contents that ``unbound`` returned are resident, and room for the new blocks has been
        made.
        """
        for page, _ in spans:
            make_writable(page, self._memory, self._operations)

    def slots(self, spans: Spans) -> list[int]:
        """Flat slots of ``spans``, whose pages are bound."""
        size = self._memory.page_size
        flat: list[int] = []
        for page, count in spans:
            assert page.content is not None
            assert page.content.block is not None
            start = page.content.block * size + page.fill
            flat += range(start, start + count)
        return flat

    def record(self, positions: Sequence[int], tokens: Sequence[int | None]) -> list[Content]:
        """Note that the next slots are written: ``tokens[i]`` (None if unknown) at
        ``positions[i]``.

        Returns the contents that are now full and canonical, for the index.
        """
        if self._record_in_page(positions, tokens):
            return []
        size = self._memory.page_size
        filled: list[Content] = []
        done = 0
        for page, count in self.spans(len(positions)):
            content = page.content
            assert content is not None
            assert content.block is not None
            self._record_tokens(page, content, tokens[done : done + count])
            page.mask |= ((1 << count) - 1) << page.fill
            page.write(positions[done : done + count])
            done += count
            if page.fill == size:
                if content.canonical and page.is_plain:
                    parent = content.parent
                    content.node = self._memory.index.child(
                        self._tenant, parent, content.tokens, self.adapter
                    )
                    self.prefix = Prefix(True, content.node)
                    content.note_family(self._family)
                    filled.append(content)
                else:
                    self.prefix = Prefix(False, None)
        assert done == len(positions), "there are more tokens than slots"
        self.num_free_slots -= done
        return filled

    def _record_in_page(self, positions: Sequence[int], tokens: Sequence[int | None]) -> bool:
        """The fast path of ``record`` for most decode steps: known tokens continue a canonical page
        without filling it. Returns False, with nothing done, in any other case."""
        page = None if None in tokens else self._page_for(len(tokens))
        if page is None:
            return False
        assert page.content is not None
        page.content.tokens += cast(Sequence[int], tokens)
        page.write(positions)
        self.num_free_slots -= len(tokens)
        return True

    def record_next(self, position: int, token: int) -> bool:
        """``record`` for one known token that continues a canonical page without filling it.
        Returns False, with nothing done, in any other case."""
        page = self._page_for(1)
        if page is None:
            return False
        assert page.content is not None
        page.content.tokens.append(token)
        page.write_next(position)
        self.num_free_slots -= 1
        return True

    def _page_for(self, num_tokens: int) -> Page | None:
        """The current page, if it is canonical, has a token already, and ``num_tokens`` more known
        tokens do not fill it; else None."""
        page = self.pages[self._first] if self._first < len(self.pages) else None
        if page is None or not 0 < page.fill < self._memory.page_size - num_tokens:
            return None
        content = page.content
        if content is None or not content.canonical or len(content.tokens) != page.fill:
            return None
        return page if self.prefix.is_canonical else None

    def _record_tokens(self, page: Page, content: Content, tokens: Sequence[int | None]) -> None:
        content.forget_tokens_from(page.fill)
        if page.fill == 0:
            content.parent, content.adapter = self.prefix.parent, self.adapter
            content.canonical = self.prefix.is_canonical
        is_aligned = len(content.tokens) == page.fill and None not in tokens
        content.canonical = content.canonical and self.prefix.is_canonical and is_aligned
        if content.canonical:
            content.tokens += cast(Sequence[int], tokens)
        else:
            self.prefix = Prefix(False, None)

    def map_cached(self, contents: Sequence[Content], position: int) -> int:
        """Map the next pages to ``contents``, full pages; returns the number of tokens that they
        add. The first page may hold tokens already, up to ``position``: its content is exchanged
        for one that begins with the same tokens. The others are empty."""
        if not contents:
            return 0
        size, pages, family = self._memory.page_size, self.pages, self._family
        self.spans(1)  # the first page is one with room
        num_before = pages[self._first].fill
        position -= num_before
        for number, content in enumerate(contents, self._first):
            page = pages[number]
            assert page.fill == 0 or number == self._first
            self._memory.retain(content)
            content.note_family(family)
            if page.content is not None:
                self._memory.release(page.content)
            page.map(content, position, size)
            position += size
        node = contents[-1].node
        assert node is not None
        self.prefix = Prefix(True, node)
        num_mapped = len(contents) * size - num_before
        self.num_free_slots -= num_mapped
        return num_mapped

    def reopen_last_slot(self) -> None:
        """Make the last slot that ``map_cached`` filled writable again. Binding it copies the other
        slots of its page."""
        page = next(page for page in reversed(self.pages) if page.fill)
        assert page.content is not None
        page.truncate(page.fill - 1)
        self.num_free_slots += 1
        self.prefix = Prefix(True, page.content.parent)

    def drop_unused(self) -> None:
        """Free the blocks that an ended command bound for slots it never wrote."""
        for page in self.pages[self._first :]:
            if page.fill == 0 and page.content is not None:
                self._memory.release(page.content)
                page.content = None
