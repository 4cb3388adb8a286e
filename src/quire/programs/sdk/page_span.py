"""The pages of one context, which hold the first ``num_run`` tokens of its text, in order.

Owns the pages and the order of operations on them. Must not know the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.core.errors import InvalidArgument
from quire.programs.api import KvPage, Model, Queue
from quire.programs.api.allocate import AllocateFunctions
from quire.programs.api.forward import ForwardFunctions
from quire.programs.api.reply import CommandFuture
from quire.programs.api.reposition import RepositionFunctions
from quire.programs.sdk.ledger import PageLedger

Sees = Callable[[int, int], bool]
"""Whether the token at the first position sees the token at the second, earlier position."""


class PageSpan:
    """Every page but the last written one is full. A page with other holders is never written.

    Token ``i`` is at position ``i``, in slot ``i % page_size`` of page ``i // page_size``. Evicted
    tokens are hidden in their page; a page of which all slots are hidden is freed.
    """

    def __init__(self, model: Model, queue: Queue, ledger: PageLedger) -> None:
        self.queue = queue
        self.num_run = 0
        self._size = model.page_size
        self._ledger = ledger
        self._allocate = AllocateFunctions(model.issuer)
        self._forward = ForwardFunctions(model.issuer)
        self._reposition = RepositionFunctions(model.issuer)
        self._pages: list[KvPage | None] = []
        self._hidden: dict[int, set[int]] = {}
        self._behind: list[CommandFuture] = []

    @property
    def written(self) -> list[KvPage]:
        pages = self._pages[: -(-self.num_run // self._size)]
        return [page for page in pages if page is not None]

    @property
    def written_places(self) -> list[int]:
        """The indices of the ``written`` pages in the text, from 0."""
        return [
            index
            for index, page in enumerate(self._pages[: -(-self.num_run // self._size)])
            if page is not None
        ]

    @property
    def page_size(self) -> int:
        return self._size

    @property
    def writable(self) -> list[KvPage]:
        """The pages from the one that takes the next token on."""
        pages = self._pages[self.num_run // self._size :]
        return [page for page in pages if page is not None]

    @property
    def num_pages(self) -> int:
        """The number of its pages, those shared with forks included."""
        return sum(page is not None for page in self._pages)

    @property
    def num_shared_pages(self) -> int:
        """The number of its pages that a fork holds too."""
        return self._ledger.num_shared([page for page in self._pages if page is not None])

    def ordered(self) -> Queue:
        """The queue, ordered after operations on these pages from other contexts' queues."""
        self._behind = [answer for answer in self._behind if not answer.done()]
        return self.queue.after(*self._behind)

    def issued(self, answer: CommandFuture) -> None:
        """Make later uses of the pages on other queues wait for ``answer``."""
        self._behind.append(answer)

    def ensure(self, num_tokens: int) -> None:
        """Allocate pages for ``num_tokens`` tokens in total."""
        missing = -(-num_tokens // self._size) - len(self._pages)
        if missing > 0:
            self._pages += self._new_pages(missing)

    def adopt(self, pages: Sequence[KvPage]) -> None:
        """Start with imported pages."""
        self._ledger.add(pages, self.queue)
        self._pages = list(pages)
        self.num_run = sum(page.fill or 0 for page in pages)

    def fork_from(self, other: PageSpan) -> None:
        """Start with the pages of ``other``: its full pages are shared, its partly filled one is
        copied."""
        num_full = other.num_run // self._size
        rest = other.num_run % self._size
        self._pages = other._pages[:num_full]
        self._ledger.share([page for page in self._pages if page is not None])
        self._behind = list(other._behind)
        self._hidden = {index: set(slots) for index, slots in other._hidden.items()}
        if rest:
            self.ensure(other.num_run)
            copied = self._copy(other._held(num_full), num_full, rest)
            other.issued(copied)  # it must not truncate the page before the copy
        self.num_run = other.num_run

    def rewind(self, num_run: int) -> None:
        """Keep only ``num_run`` tokens; later pages are freed.

        Raises:
            InvalidArgument: the page of the last kept token was evicted.
        """
        num_pages, rest = -(-num_run // self._size), num_run % self._size
        if rest and self._pages[num_pages - 1] is None:
            raise InvalidArgument(
                f"cannot go back to {num_run} tokens, because the page of the last one was "
                f"evicted: go back to {num_run - rest} or {num_run - rest + self._size}, or evict "
                "later"
            )
        surplus = [page for page in self._pages[num_pages:] if page is not None]
        del self._pages[num_pages:]
        self._hidden = {i: slots for i, slots in self._hidden.items() if i < num_pages}
        if rest:
            self._hidden.get(num_pages - 1, set()).difference_update(range(rest, self._size))
            surplus += self._cut(num_pages - 1, rest)
        if surplus:
            self._ledger.release(surplus, self.queue)
        self.num_run = num_run

    def forget(self, start: int, stop: int) -> tuple[int, int]:
        """Drop the whole pages between the tokens ``start`` and ``stop``; later tokens move up.
        Returns the index of the first dropped token and the number of dropped tokens.

        Raises:
            InvalidArgument: tokens that do not exist or are not computed yet.
            TraitMissing: the model cannot move pages to other positions.
        """
        if not 0 <= start <= stop <= self.num_run:
            raise InvalidArgument(
                f"forget tokens {start} to {stop}: choose computed tokens, from 0 to {self.num_run}"
            )
        self._reposition.resolve(self.queue)
        size = self._size
        first, last = -(-start // size), stop // size
        num_pages = last - first
        if num_pages < 1:
            return first * size, 0
        behind = range(last, -(-self.num_run // size))
        surplus = [page for page in self._pages[first:last] if page is not None]
        for index in behind:
            if self._pages[index] is not None:
                surplus += self._unshare(index)
        moved = [page for page in self._pages[last : behind.stop] if page is not None]
        del self._pages[first:last]
        self._hidden = {
            index - num_pages * (index >= last): slots
            for index, slots in self._hidden.items()
            if not first <= index < last
        }
        self.num_run -= num_pages * size
        if moved:
            shift = -num_pages * size
            self.issued(self._reposition.reposition_kvpage(self.ordered(), moved, shift))
        if surplus:
            self._ledger.release(surplus, self.queue)
        return first * size, num_pages * size

    # -- what is seen ------------------------------------------------------------------------------

    @property
    def has_gaps(self) -> bool:
        """Whether any token was evicted."""
        return bool(self._hidden)

    def evict(self, start: int, stop: int) -> None:
        """Hide the tokens ``start`` to ``stop``; full pages of hidden tokens are freed.

        Raises:
            InvalidArgument: tokens that do not exist or are not computed yet.
        """
        if not 0 <= start <= stop <= self.num_run:
            raise InvalidArgument(
                f"evict tokens {start} to {stop}: choose computed tokens, from 0 to {self.num_run}"
            )
        freed = []
        for index in range(start // self._size, -(-stop // self._size)):
            first, page = index * self._size, self._pages[index]
            hidden = self._hidden.setdefault(index, set())
            slots = set(range(max(start - first, 0), min(stop - first, self._size))) - hidden
            if page is None or not slots:
                continue
            hidden |= slots
            if len(hidden) == self._size:
                freed.append(page)
                self._pages[index] = None
            else:
                freed += self._unshare(index)
                self._hide(index)
        if freed:
            self._ledger.release(freed, self.queue)

    def mask(self, num_new: int, sees: Sees) -> list[list[bool]]:
        """``sees`` as the mask of a forward of the next ``num_new`` tokens over ``written``.

        Slots that are hidden in their page stay hidden in any case.
        """
        first = self.num_run
        keys = [
            position if position < first else None
            for index, page in enumerate(self._pages[: -(-first // self._size)])
            if page is not None
            for position in range(index * self._size, (index + 1) * self._size)
        ]
        return [
            [key is not None and sees(query, key) for key in keys]
            + [sees(query, key) for key in range(first, query)]
            + [True]
            + [False] * (first + num_new - query - 1)
            for query in range(first, first + num_new)
        ]

    def drop(self) -> None:
        """Free all pages. A failed queue whose commands have ended is closed at once."""
        pages, self._pages = self._pages, []
        self._ledger.release([page for page in pages if page is not None], self.queue)
        is_idle = all(answer.done() for answer in self._behind)
        has_failed = self.queue.state.failure is not None
        self._ledger.retire(self.queue, at_once=has_failed and is_idle)

    # -- single pages ------------------------------------------------------------------------------

    def _held(self, index: int) -> KvPage:
        page = self._pages[index]
        assert page is not None, f"page {index} was evicted"
        return page

    def _new_pages(self, num_pages: int) -> list[KvPage]:
        pages = self._allocate.alloc_kvpage(self.queue, num_pages)
        self._ledger.add(pages, self.queue)
        return pages

    def _copy(self, source: KvPage, index: int, fill: int) -> CommandFuture:
        """Copy the first ``fill`` slots of ``source`` to page ``index``, with the same hidden
        slots."""
        target = self._held(index)
        copied = self._allocate.copy_kvpage(self.ordered(), source, target, num_slots=fill)
        self.issued(copied)
        if self._hidden.get(index):
            self._hide(index)
        return copied

    def _hide(self, index: int) -> None:
        hidden = self._hidden[index]
        visible = [slot not in hidden for slot in range(self._size)]
        self.issued(self._forward.mask_kvpage(self.ordered(), self._held(index), visible))

    def _unshare(self, index: int, fill: int | None = None) -> list[KvPage]:
        """Replace a shared page by a copy. Returns the page that is no longer needed, if any."""
        page = self._held(index)
        if not self._ledger.is_shared(page):
            return []
        if fill is None:
            fill = min(self.num_run - index * self._size, self._size)
        self._pages[index] = self._new_pages(1)[0]
        self._copy(page, index, fill)
        return [page]

    def _cut(self, index: int, fill: int) -> list[KvPage]:
        """Truncate a page, or a copy of it if it is shared. Returns the page that is no longer
        needed, if any."""
        if self._held(index).fill == fill:
            return []
        surplus = self._unshare(index, fill)
        if not surplus:
            page = self._held(index)
            self.issued(self._allocate.truncate_kvpage(self.ordered(), page, fill))
        return surplus
