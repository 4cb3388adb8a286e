"""Puts ``CopyPage`` into a message: copies slots of a page and what is known of them.

Owns what control knows of the target afterwards. ``lowering`` checks which slots a command may
copy.
"""

from __future__ import annotations

from quire.control.engines.builder import BatchBuilder
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.copy_on_write import give_own, make_writable, needs
from quire.control.memory.pages import Page
from quire.control.memory.promises import Reclaim
from quire.control.memory.residency import secure
from quire.core.commands import CopyPage


def copy_slots(
    engine: EngineState,
    source: Page,
    target: Page,
    command: CopyPage,
    builder: BatchBuilder,
    reclaim: Reclaim,
) -> bool:
    """Copy within this message; return False if there is no room for it now.

    Raises:
        PageLost: what is to be copied, or copied into, is lost and its tokens are not known.
    """
    assert source.content is not None
    resident, num_new = needs(target)
    is_read = target.content is not None and builder.is_read(target.content)
    contents = [source.content] if resident is None else [source.content, resident]
    if not engine.are_present(contents, builder):
        return False
    pinned = secure(engine.memory, contents, max(num_new, int(is_read)), reclaim)
    if pinned is None:
        return False
    builder.pins += pinned
    if is_read:  # commands that have begun read it as it was
        give_own(target, engine.memory, engine.operations)
    else:
        make_writable(target, engine.memory, engine.operations)
    assert target.content is not None
    engine.memory.pin(target.content)
    builder.pins.append(target.content)
    builder.copied_to(target.content)
    assert source.content.block is not None
    assert target.content.block is not None
    engine.operations.copy_slots(
        source.content.block * engine.page_size + command.source_offset,
        target.content.block * engine.page_size + command.target_offset,
        command.num_slots,
    )
    _note_copy(source, target, target.content, command, engine.page_size)
    return True


def _note_copy(
    source: Page, target: Page, content: Content, command: CopyPage, page_size: int
) -> None:
    start, num = command.target_offset, command.num_slots
    original = source.content
    assert original is not None
    is_whole = command.source_offset == start == 0 and num >= target.fill
    content.forget_tokens_from(0)
    content.canonical = is_whole and original.canonical and source.is_plain
    if content.canonical:
        content.parent, content.tokens = original.parent, original.tokens[:num]
        content.adapter = original.adapter
        content.node = original.node if num == page_size else None
    copied = source.positions[command.source_offset : command.source_offset + num]
    target.positions = [*target.positions[:start], *copied, *target.positions[start + num :]]
    target.fill = max(target.fill, start + num)
    target.mask |= ((1 << num) - 1) << start
