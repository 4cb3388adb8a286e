"""Trait Reposition: moves pages to other positions. Served by the engine."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.commands import RepositionPage
from quire.core.errors import InvalidArgument, PromptTooLong
from quire.core.traits import Trait
from quire.programs.api.handles import KvPage, Queue, as_list, check_all, check_distinct
from quire.programs.api.integers import whole_number
from quire.programs.api.issuer import nothing
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply


class RepositionFunctions(TraitFunctions):
    trait = Trait.REPOSITION

    @queued
    def reposition_kvpage(
        self, queue: Queue, pages: KvPage | Sequence[KvPage], shift: int
    ) -> Reply[None]:
        """Move the written slots of ``pages`` by ``shift`` positions (backwards if it is negative).

        K is rotated as if the model's rotary embedding had computed it there; V, fill and masks do
        not change. With this, a window over sinks can stream past the model's context length, and a
        cached module can be used at any position. Shared pages (forks, exports, imports) are copied
        first: other holders keep their positions.

        The result is exact, except for rounding, in the first layer; and in all layers if a whole
        context moves by one distance. Deeper layers of pages that move alone still contain what
        they attended to at their old place, so such pages are not entered into the prefix index. In
        bfloat16 one rotation has about the rounding error of writing the key, and errors of several
        rotations add up: rotate from the original, in one step.

        The reply is that of the last page.

        Raises (when awaited, if the positions are not known here):
            InvalidArgument: no pages, or a position that would be negative.
            PromptTooLong: a position beyond the model's.
        """
        given = as_list(pages)
        check_all(self._issuer, given, KvPage)
        check_distinct(given)
        shift = whole_number("shift", shift)
        if not given:
            raise InvalidArgument("reposition_kvpage needs at least one page")
        for page in given:
            _check(page, shift, queue.state.model.info.max_model_len)
        for page in given:
            page.before_write()
            page.move(shift)
            command = RepositionPage(
                id=self._issuer.command_id(),
                after=queue.dependencies,
                page=page.page_id,
                shift=shift,
            )
            reply = self._issuer.submit(queue, command, nothing)
        return reply


def _check(page: KvPage, shift: int, max_model_len: int) -> None:
    """Raise if a known position would become invalid."""
    positions = page.positions
    if not positions:
        return
    first, last = min(positions), max(positions)
    if first + shift < 0:
        raise InvalidArgument(
            f"page {page.id} holds position {first}, which a shift of {shift} makes negative: "
            f"shift by {-first} or more"
        )
    if last + shift >= max_model_len:
        raise PromptTooLong(
            f"page {page.id} holds position {last}, which a shift of {shift} moves beyond the "
            f"model's {max_model_len} positions: shift by {max_model_len - 1 - last} at most",
            max_model_len=max_model_len,
        )
