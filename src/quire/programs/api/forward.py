"""Trait Forward: the transformer over embeds and pages, masks on pages. Served by the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast

from quire.core.commands import Forward as ForwardCommand
from quire.core.commands import MaskPage
from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.handles import (
    Embed,
    KvPage,
    Queue,
    append_positions,
    as_list,
    check_all,
)
from quire.programs.api.issuer import Issuer, nothing
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply

Pages = KvPage | Sequence[KvPage]
Embeds = Embed | Sequence[Embed]
T = TypeVar("T")


class ForwardFunctions(TraitFunctions):
    trait = Trait.FORWARD

    @queued
    def forward(
        self,
        queue: Queue,
        ikv: Pages,
        iemb: Embeds,
        okv: Pages | Embeds = (),
        oemb: Embeds = (),
        mask: Sequence[Sequence[bool]] | None = None,
    ) -> Reply[None]:
        """Run the transformer over ``iemb``, one new token each, at the positions of the embeds.

        A new token sees the written, unmasked slots of ``ikv`` at lower positions, the new tokens
        at lower positions, and itself. K and V of the new tokens are appended to ``okv`` at its
        fill cursors, in order (if empty, they are not kept). ``oemb`` receives the final hidden
        states of the last ``len(oemb)`` tokens. ``mask`` [len(iemb), len(ikv) * page_size +
        len(iemb)] replaces the rule of positions. The three-argument form ``forward(ikv, iemb,
        oemb)`` is accepted too.

        Raises:
            InvalidArgument: an embed that was never written, more outputs than inputs, too few free
                slots in ``okv``, a mask of another shape.
            UnknownHandle: a handle that this program does not hold.
        """
        return issue_forward(
            self._issuer,
            queue,
            (ikv, iemb, okv, oemb),
            mask,
            queue.state.model.adapter,
            convert=nothing,
        )

    @queued
    def mask_kvpage(self, queue: Queue, page: KvPage, visible: Sequence[bool]) -> Reply[None]:
        """Set this program's mask of one page, ``page_size`` flags: False hides the slot."""
        check_all(self._issuer, [page], KvPage)
        if len(visible) != page.size:
            raise InvalidArgument(
                f"a mask of {len(visible)} flags for page {page.id} of {page.size} slots: "
                "give one flag per slot"
            )
        command = MaskPage(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            page=page.page_id,
            visible=[bool(flag) for flag in visible],
        )
        return self._issuer.submit(queue, command, nothing)


def issue_forward(
    issuer: Issuer,
    queue: Queue,
    handles: tuple[Pages, Embeds, Pages | Embeds, Embeds],
    mask: Sequence[Sequence[bool]] | None,
    adapter: str | None,
    *,
    scores: Literal["pages", "slots"] | None = None,
    convert: Callable[[Any], T],
) -> Reply[T]:
    """Check and issue a forward. ``handles``: ikv, iemb, okv, oemb."""
    ikv, iemb, okv, oemb = handles
    if not oemb and okv and isinstance(as_list(cast(Pages, okv))[0], Embed):
        okv, oemb = (), cast(Embeds, okv)
    context, inputs, outputs = as_list(ikv), as_list(iemb), as_list(oemb)
    check_all(issuer, context, KvPage)
    output = context
    if okv is not ikv:  # a decode loop passes one list of pages for both
        output = as_list(cast(Pages, okv))
        check_all(issuer, output, KvPage)
    check_all(issuer, inputs, Embed)
    check_all(issuer, outputs, Embed)
    positions = _positions(inputs, outputs)
    if mask is not None:
        _check_mask(mask, len(inputs), len(context) * queue.page_size + len(inputs))
    if output:
        append_positions(output, positions)
    for embed, position in zip(reversed(outputs), reversed(positions), strict=False):
        embed.position = position
    context_ids = [page.page_id for page in context]
    command = ForwardCommand(
        id=issuer.command_id(),
        after=queue.dependencies,
        context=context_ids,
        inputs=[embed.embed_id for embed in inputs],
        output=context_ids if output is context else [page.page_id for page in output],
        outputs=[embed.embed_id for embed in outputs],
        mask=None if mask is None else [_flags(row) for row in mask],
        adapter=adapter,
        scores=scores,
    )
    return issuer.submit(queue, command, convert)


def _flags(row: Sequence[bool]) -> list[bool]:
    """``row`` as bools. Integers and numpy flags are accepted; rows of bools, the usual case, may
    have thousands of entries and are not converted."""
    flags = list(row)
    return flags if set(map(type, flags)) == {bool} else list(map(bool, flags))


def _positions(inputs: Sequence[Embed], outputs: Sequence[Embed]) -> list[int]:
    if not inputs or len(outputs) > len(inputs):
        raise InvalidArgument(
            f"forward of {len(inputs)} inputs to {len(outputs)} outputs: give at least one input "
            "and at most as many outputs"
        )
    positions: list[int] = []
    for embed in inputs:
        if embed.position is None:
            raise InvalidArgument(
                f"embed {embed.id} has not been written: embed_txt comes before forward"
            )
        positions.append(embed.position)
    return positions


def _check_mask(mask: Sequence[Sequence[bool]], num_rows: int, num_columns: int) -> None:
    if len(mask) != num_rows or any(len(row) != num_columns for row in mask):
        shape = f"[{len(mask)}, {len(mask[0]) if len(mask) else 0}]"
        raise InvalidArgument(
            f"the mask is {shape}, expected [{num_rows}, {num_columns}]: one row per new token "
            "over every slot of ikv, then the new tokens"
        )
