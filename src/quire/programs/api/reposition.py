"""Trait Reposition: pages that go to other positions. Served by the engine."""

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


class Reposition(TraitFunctions):
    trait = Trait.REPOSITION

    @queued
    def reposition_kvpage(
        self, queue: Queue, pages: KvPage | Sequence[KvPage], shift: int
    ) -> Reply[None]:
        """Take the written slots of ``pages`` ``shift`` positions on (back, if it is negative).

        K is turned as if the model's rotary embedding had put it there; V, fill and masks stay. So
        a window over sinks streams past the model's context, and what was computed once stands
        anywhere. Pages that are shared (forks, exports, imports) are copied first: what others have
        stays where it is.

        Exact, but for rounding, is the first layer; and all of them for a whole context that is
        taken by one distance. Deeper layers of pages that move alone keep what they saw of their
        old neighbours, so such pages are never found by their tokens. In bfloat16 a turn costs
        about what writing the key cost, and turns add up: turn from the original, in one go.

        The reply is that of the last page.

        Raises (when awaited, where the positions are not known here):
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
            _check(page, shift, queue.lane.model.info.max_model_len)
        for page in given:
            page.before_write()
            page.move(shift)
            command = RepositionPage(
                id=self._issuer.command_id(),
                after=queue.dependencies,
                page=page.page_id,
                shift=shift,
            )
            reply = self._issuer.ask(queue, command, nothing)
        return reply


def _check(page: KvPage, shift: int, max_model_len: int) -> None:
    """Raise if a position that is known would be none."""
    positions = page.positions
    if not positions:
        return
    first, last = min(positions), max(positions)
    if first + shift < 0:
        raise InvalidArgument(
            f"page {page.id} holds position {first}, which a shift of {shift} takes below 0: the "
            "first position is 0"
        )
    if last + shift >= max_model_len:
        raise PromptTooLong(
            f"page {page.id} holds position {last}, which a shift of {shift} takes beyond the "
            f"model's {max_model_len} positions",
            max_model_len=max_model_len,
        )
