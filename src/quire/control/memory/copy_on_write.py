"""Makes a page writable: an exclusive device block with the slots that its holder sees.

Owns the rule of which page may write a content: its only reference, unless the content is
in the prefix index, or commands read slots of it that the page has given up.
"""

from __future__ import annotations

from quire.control.memory.content import Content
from quire.control.memory.memory import Memory
from quire.control.memory.operations import OperationList
from quire.control.memory.pages import Page


def is_shared(content: Content) -> bool:
    return content.num_refs > 1 or content.indexed or content.is_cut


def needs(page: Page) -> tuple[Content | None, int]:
    """What ``make_writable`` needs: a content that must be resident (or None), and a number of new
    blocks."""
    content = page.content
    if content is None:
        return None, 1
    if page.fill:
        return content, int(is_shared(content))
    return None, int(is_shared(content) or content.block is None)


def make_writable(page: Page, memory: Memory, operations: OperationList) -> None:
    """Give ``page`` a block of its own if its content is shared or not on the device. The content
    that ``needs`` returned is resident, and room for the blocks has been made."""
    content = page.content
    if content is None or is_shared(content) or content.block is None:
        give_own(page, memory, operations)


def give_own(page: Page, memory: Memory, operations: OperationList) -> None:
    """Copy the slots of ``page``, which are resident, to a new block that only this page refers to.
    Room for it has been made."""
    content = page.content
    own = memory.retain(Content(None, canonical=False))
    memory.bind(own)
    if content is not None and page.fill:
        own.parent, own.canonical = content.parent, content.canonical
        own.adapter = content.adapter
        own.tokens = content.tokens[: page.fill]
        assert own.block is not None
        assert content.block is not None
        size = memory.page_size
        operations.copy_slots(content.block * size, own.block * size, page.fill)
    page.content = own
    if content is not None:
        memory.release(content)
