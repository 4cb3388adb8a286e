"""Bringing what a command needs to the device, and keeping it there while it is used.

Owns the order of the steps (pin, make room, swap in) so that making room for one content can never
push out another of the same command. What has to come is not waited for here: its transfer begins,
and who needs it asks again when that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.memory.content import Content
from quire.control.memory.memory import Memory
from quire.control.memory.promises import Reclaim


def secure(
    memory: Memory, contents: Iterable[Content], num_new: int, reclaim: Reclaim
) -> list[Content] | None:
    """Make ``contents`` resident and ``num_new`` further blocks free.

    Returns the contents, pinned as often as they are named, or None (nothing is pinned): there is
    no room, or what is to come or to make room is under way. None of them may be lost.
    """
    pinned = list(contents)
    away = {id(content): content for content in pinned if content.block is None}
    for content in pinned:
        content.num_pins += 1
    num_to_come = sum(not memory.is_coming(content) for content in away.values())
    if memory.make_room(num_to_come + num_new, reclaim):
        if not away:
            return pinned
        _bring(memory, away.values(), num_new, reclaim)
    memory.unpin_all(pinned)
    return None


def _bring(memory: Memory, away: Iterable[Content], num_new: int, reclaim: Reclaim) -> None:
    """Begin to bring what is on the host. Blocks for the rest stay promised."""
    num_later = num_new
    for content in away:
        if not content.is_moving:
            memory.swap_in(content)
        else:
            num_later += not memory.is_coming(content)
    memory.promise(num_later, reclaim)
