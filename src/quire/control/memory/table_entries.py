"""Makes the entries of a page table, as two lists. Owns nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from quire.control.memory.pages import Page
from quire.core.ids import BlockId

NO_BLOCK = BlockId(0)
"""The block of a page without one. The page's visibility word is 0, so any block will do."""


def table_entries(
    pages: Sequence[Page], hidden: Mapping[Page, int], page_size: int
) -> tuple[list[BlockId], list[int]]:
    """Blocks and visibility words of ``pages``. ``hidden``: the number of first slots to hide, for
    pages that hide any."""
    found = [None if page.content is None else page.content.block for page in pages]
    # compiled, a number that is looked at is made anew: those of long prompts are passed on
    if None in found:
        found = [NO_BLOCK if block is None else block for block in found]
    blocks = cast(list[BlockId], found)
    words = [(1 << page_size) - 1] * len(pages)
    for index, page in enumerate(pages):
        if page.fill != page_size or page.mask != -1:  # most are full and hide nothing
            words[index] = page.visible
    if hidden:
        words = [w & -1 << hidden.get(page, 0) for w, page in zip(words, pages, strict=True)]
    return blocks, words
