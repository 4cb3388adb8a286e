"""Puts ``RepositionPage`` into a message: takes a page's slots to other positions.

Owns what control knows afterwards: the page is not part of any known prefix, because its deeper
layers were computed at its old place, and neither is what is computed behind it. Commands that read
the page meanwhile read it as it was.
"""

from __future__ import annotations

from quire.control.engines.builder import BatchBuilder
from quire.control.engines.state import EngineState
from quire.control.memory.copy_on_write import give_own, is_shared
from quire.control.memory.pages import Page
from quire.control.memory.promises import Reclaim
from quire.control.memory.residency import secure
from quire.core.errors import InvalidArgument, PromptTooLong


def reposition(
    engine: EngineState,
    page: Page,
    shift: int,
    builder: BatchBuilder,
    reclaim: Reclaim,
) -> bool:
    """Take ``page``, which is not empty, ``shift`` positions on within this message; return False
    if there is no room for it now.

    Raises:
        InvalidArgument: a position would be negative.
        PromptTooLong: a position would be beyond the model's.
        PageLost: what it holds is lost and its tokens are not known.
    """
    positions = _positions(page, shift, engine.info.max_model_len)
    content = page.content
    assert content is not None
    if not engine.are_present([content], builder):
        return False
    needs_copy = is_shared(content) or content.num_pins > 0
    pinned = secure(engine.memory, [content], int(needs_copy), reclaim)
    if pinned is None:
        return False
    builder.pins += pinned
    if needs_copy:
        give_own(page, engine.memory, engine.operations)
        content = page.content
        assert content is not None
        engine.memory.pin(content)
        builder.pins.append(content)
    assert content.block is not None
    engine.operations.reposition_slots(content.block * engine.page_size, positions)
    content.forget_tokens_from(0)
    content.canonical, content.parent, content.adapter = False, None, -1
    page.positions = positions
    return True


def _positions(page: Page, shift: int, max_model_len: int) -> list[int]:
    moved = [position + shift for position in page.positions]
    first, last = min(moved), max(moved)
    stands = f"page {page.id} holds positions {first - shift} to {last - shift}"
    if first < 0:
        raise InvalidArgument(
            f"{stands}; a shift of {shift} takes them to {first} and on: the first position is 0"
        )
    if last >= max_model_len:
        raise PromptTooLong(
            f"{stands}; a shift of {shift} takes them to {last}, and the model has "
            f"{max_model_len} positions",
            max_model_len=max_model_len,
        )
    return moved
