"""Gives the pages of a program their contents on another engine of their model.

Owns the way from a content there to one here: what the prefix index has is shared, the rest is a
content that is lost until its tokens are computed again. Does not know why a program moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.control.memory.content import Content
from quire.control.memory.memory import Memory
from quire.control.memory.pages import Page
from quire.core.ids import EngineId


def relocate(
    pages: Iterable[Page],
    fills: Mapping[Page, int],
    source: Memory,
    target: Memory,
    engine: EngineId,
) -> None:
    """Bind ``pages`` to ``engine``, whose memory is ``target``. Those in ``fills`` are cut to what
    they held before a command began to append to them. What is left of each is canonical."""
    moved: dict[tuple[Content, int], Content] = {}
    for page in pages:
        page.engine = engine
        if page in fills:
            page.truncate(fills[page])
            page.is_lost = False
        content, page.content = page.content, None
        if content is None:
            continue
        if page.fill:
            place = (content, page.fill)  # pages that shared it go on sharing
            if place not in moved:
                moved[place] = _same(content, page.fill, target)
            page.content = target.retain(moved[place])
        source.release(content)


def _same(content: Content, fill: int, memory: Memory) -> Content:
    """The first ``fill`` tokens of ``content`` in ``memory``."""
    is_whole = content.node is not None and fill == len(content.tokens)
    if is_whole and content.node is not None:
        found = memory.index.lookup(content.node)
        if found is not None and not found.is_restoring:
            return found
    same = Content(content.parent, canonical=True, adapter=content.adapter)
    same.tokens = content.tokens[:fill]
    same.node = content.node if is_whole else None
    return same
