"""The pages of one context: the first ``num_run`` tokens of its text, on pages in order.

Owns the pages and the order of what is done to them. Must not know the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.programs.api import KvPage, Model, Queue
from quire.programs.api.allocate import Allocate
from quire.programs.api.reply import Answer
from quire.programs.sdk.ledger import PageLedger


class PageSpan:
    """Every page but the last written one is full. A page that others hold is never written."""

    def __init__(self, model: Model, queue: Queue, ledger: PageLedger) -> None:
        self.queue = queue
        self.num_run = 0
        self._size = model.page_size
        self._ledger = ledger
        self._allocate = Allocate(model.issuer)
        self._pages: list[KvPage] = []
        self._behind: list[Answer] = []

    @property
    def written(self) -> list[KvPage]:
        return self._pages[: -(-self.num_run // self._size)]

    @property
    def writable(self) -> list[KvPage]:
        """From the page on that takes the next token."""
        return self._pages[self.num_run // self._size :]

    def ordered(self) -> Queue:
        """The queue, behind what other contexts' queues still do with these pages."""
        self._behind = [answer for answer in self._behind if not answer.done()]
        return self.queue.after(*self._behind)

    def issued(self, answer: Answer) -> None:
        """Whoever uses the pages from another queue waits for this."""
        self._behind.append(answer)

    def ensure(self, num_tokens: int) -> None:
        """Have pages for so many tokens."""
        missing = -(-num_tokens // self._size) - len(self._pages)
        if missing > 0:
            pages = self._allocate.alloc_kvpage(self.queue, missing)
            self._ledger.add(pages, self.queue)
            self._pages += pages

    def adopt(self, pages: Sequence[KvPage]) -> None:
        """Begin with imported pages."""
        self._ledger.add(pages, self.queue)
        self._pages = list(pages)
        self.num_run = sum(page.fill or 0 for page in pages)

    def fork_from(self, other: PageSpan) -> None:
        """Begin with what ``other`` has: its full pages, and a copy of the one that it writes."""
        num_full = other.num_run // self._size
        rest = other.num_run % self._size
        self._pages = other._pages[:num_full]
        self._ledger.share(self._pages)
        self._behind = list(other._behind)
        if rest:
            self.ensure(other.num_run)
            copied = self._allocate.copy_kvpage(
                self.ordered(), other._pages[num_full], self._pages[num_full], num_slots=rest
            )
            self.issued(copied)
            other.issued(copied)  # it must not shorten the page before
        self.num_run = other.num_run

    def rewind(self, num_run: int) -> None:
        """Keep only ``num_run`` tokens; pages behind them are given back."""
        num_pages, rest = -(-num_run // self._size), num_run % self._size
        surplus = self._pages[num_pages:]
        del self._pages[num_pages:]
        if rest and self._pages[-1].fill != rest:
            surplus += self._cut_last_page(rest)
        if surplus:
            self._ledger.release(surplus, self.queue)
        self.num_run = num_run

    def drop(self) -> None:
        pages, self._pages = self._pages, []
        self._ledger.release(pages, self.queue)
        self._ledger.retire(self.queue)

    def _cut_last_page(self, fill: int) -> list[KvPage]:
        """Shorten the last page, or a copy of it if others hold it; what became superfluous."""
        page = self._pages[-1]
        if not self._ledger.is_shared(page):
            self.issued(self._allocate.truncate_kvpage(self.ordered(), page, fill))
            return []
        self._pages.pop()
        self.ensure((len(self._pages) + 1) * self._size)
        self.issued(
            self._allocate.copy_kvpage(self.ordered(), page, self._pages[-1], num_slots=fill)
        )
        return [page]


__all__ = ["PageSpan"]
