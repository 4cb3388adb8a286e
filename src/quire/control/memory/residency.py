"""Bringing what a command needs to the device, and keeping it there while it is used.

Owns the order of the steps (pin, make room, swap in) so that making room for one content can never
push out another of the same command.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.memory.content import Content
from quire.control.memory.memory import Memory, Reclaim


def secure(
    memory: Memory, contents: Iterable[Content], num_new: int, reclaim: Reclaim
) -> list[Content] | None:
    """Make ``contents`` resident and ``num_new`` further blocks free.

    Returns the contents, pinned as often as they are named, or None (nothing is pinned) when there
    is no room. None of them may be lost.
    """
    pinned = list(contents)
    away = {id(content): content for content in pinned if content.block is None}
    for content in pinned:
        content.num_pins += 1
    if not memory.make_room(len(away) + num_new, reclaim):
        memory.unpin_all(pinned)
        return None
    for content in away.values():
        memory.swap_in(content)
    return pinned


__all__ = ["secure"]
