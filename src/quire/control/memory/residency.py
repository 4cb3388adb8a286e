"""Brings the contents that a command needs to the device and pins them while it uses them.

Owns the order of the steps (pin, make room, bring), which ensures that making room for one
content never moves out another of the same command. It does not wait for contents to arrive: it
begins their transfers, and the caller calls again when these have ended.
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

    Returns the contents, pinned once for each time they are named; or None, with nothing pinned, if
    there is no room or a needed transfer is in progress. No content may be lost.
    """
    pinned = list(contents)
    away: dict[int, Content] = {}
    for content in pinned:
        content.num_pins += 1
        if content.block is None:
            away[id(content)] = content
    num_to_come = sum(not memory.is_coming(content) for content in away.values())
    if memory.make_room(num_to_come + num_new, reclaim):
        if not away:
            return pinned
        _bring(memory, away.values(), num_new, reclaim)
    memory.unpin_all(pinned)
    return None


def _bring(memory: Memory, away: Iterable[Content], num_new: int, reclaim: Reclaim) -> None:
    """Begin the transfers of contents on lower tiers. Promise the blocks for the others."""
    num_later = num_new
    for content in away:
        if not content.is_moving:
            memory.bring(content, reclaim.program)
        else:
            num_later += not memory.is_coming(content)
    memory.promise(num_later, reclaim)
