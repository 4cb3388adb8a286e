"""The virtual pages of programs: what a holder knows about the slots of each.

Owns fill cursors, positions and masks; contents are shared through ``Content``. Does not know on
which tier a content is, nor the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.control.memory.content import ChainNode, Content
from quire.core.ids import EngineId, PageId, QueueId


class Page:
    """One page of one program.

    ``owner``     the queue of its program on which it was allocated.
    ``fill``      number of written slots, as this holder sees it; ``positions`` has one entry for
                  each. If they follow one another, as they usually do, only the first is kept.
    ``mask``      bit i set: the holder does not hide slot i. Bits from ``fill`` on are set.
    ``num_pins``  unfinished commands that name it; a freed page stays until they have ended.
    ``is_counted``  it counts against the quotas of its program and that program's ancestors.
    ``is_released``  a dealloc was issued: no later command may name it.
    ``is_freed``  that dealloc was executed.
    ``is_lost``   its content is lost and cannot be recomputed.
    ``is_void``   the command that should have created it did not (it is lost, too). It stays while
                  it is pinned, so that its id is not reused under commands that name it.
    ``orphan_of``  the queue on which its dealloc failed; it is freed when that queue is reset or
                   closed.
    ``appender``  the serial of the queue whose started commands append to it (``num_appends`` of
                  them). Unlike a queue id, a serial is never reused.
    """

    __slots__ = (
        "_first_position",
        "_positions",
        "appender",
        "content",
        "engine",
        "fill",
        "id",
        "is_counted",
        "is_freed",
        "is_lost",
        "is_released",
        "is_void",
        "mask",
        "num_appends",
        "num_pins",
        "orphan_of",
        "owner",
    )

    def __init__(self, page_id: PageId, engine: EngineId, owner: QueueId) -> None:
        self.id = page_id
        self.engine = engine
        self.owner = owner
        self.content: Content | None = None
        self.fill = 0
        self._first_position = 0
        self._positions: list[int] | None = None
        self.mask = -1
        self.num_pins = 0
        self.appender: int | None = None
        self.num_appends = 0
        self.is_counted = False
        self.is_released = False
        self.is_freed = False
        self.is_lost = False
        self.is_void = False
        self.orphan_of: QueueId | None = None

    @property
    def positions(self) -> Sequence[int]:
        if self._positions is None:
            return range(self._first_position, self._first_position + self.fill)
        return self._positions

    @positions.setter
    def positions(self, positions: Sequence[int]) -> None:
        """Set one position for each written slot; a caller that changes their number sets ``fill``
        too."""
        if isinstance(positions, range) and positions.step == 1:
            self._first_position, self._positions = positions.start, None
        else:
            self._positions = list(positions)

    @property
    def visible(self) -> int:
        """The 64-bit word of a page table entry: written and unmasked."""
        return ((1 << self.fill) - 1) & self.mask

    @property
    def is_plain(self) -> bool:
        """Whether no written slot is hidden."""
        return self.visible == (1 << self.fill) - 1

    @property
    def is_canonical(self) -> bool:
        """Whether the page holds plain causal tokens, all visible, so that it can be (part of) a
        known prefix."""
        content = self.content
        return (
            content is not None
            and content.canonical
            and len(content.tokens) >= self.fill
            and (self.mask == -1 or self.is_plain)
        )

    def lock(self, queue_serial: int) -> None:
        assert self.appender is None or self.appender == queue_serial
        self.appender = queue_serial
        self.num_appends += 1

    def unlock(self) -> None:
        self.num_appends -= 1
        if not self.num_appends:
            self.appender = None

    def map(self, content: Content, position: int, num_slots: int) -> None:
        """Show the first ``num_slots`` of ``content``, whose tokens are at ``position`` and behind
        it."""
        self.content, self.fill, self.mask = content, num_slots, -1
        self._first_position, self._positions = position, None

    def write(self, positions: Sequence[int]) -> None:
        """Note that the next slots are written, one for each position."""
        if not self.fill:
            self.positions = positions
        elif not self._goes_on(positions):
            self._positions = [*self.positions, *positions]
        self.fill += len(positions)

    def _goes_on(self, positions: Sequence[int]) -> bool:
        """Whether ``positions`` follow the written ones, so that none has to be kept."""
        if self._positions is not None or not isinstance(positions, range):
            return False
        return positions.step == 1 and positions.start == self._first_position + self.fill

    def write_next(self, position: int) -> None:
        """Note that the next slot is written, at ``position``."""
        listed = self._positions
        if listed is not None:
            listed.append(position)
        elif not self.fill:
            self._first_position = position
        elif position != self._first_position + self.fill:
            self._positions = [*self.positions, position]
        self.fill += 1

    def truncate(self, fill: int) -> None:
        self.fill = fill
        if self._positions is not None:
            del self._positions[fill:]
        self.mask |= -1 << fill

    def visible_flags(self, page_size: int) -> list[bool]:
        return [bool(self.visible >> slot & 1) for slot in range(page_size)]


@dataclass(slots=True)
class Chain:
    """Pages that form, in order, one canonical prefix. ``last``: the last page with a token.
    ``parent``: the node of the last full page."""

    num_tokens: int
    last: Page | None
    parent: ChainNode | None


def canonical_chain(pages: Iterable[Page], page_size: int, adapter: int) -> Chain | None:
    """The chain of ``pages``, if they form one canonical prefix that was computed with ``adapter``.

    All but the last must be full. Empty pages are ignored.
    """
    parent = last = None
    num_tokens = 0
    for page in pages:
        fill, content = page.fill, page.content
        if not fill:
            continue
        if content is None or num_tokens % page_size or content.adapter != adapter:
            return None
        node = content.node
        # a content with a node is full and canonical, and the node includes the preceding tokens
        is_next = node is not None and node.parent is parent and page.mask == -1
        if not is_next and not (page.is_canonical and _is_same(content.parent, parent)):
            return None
        if fill == page_size:
            if node is None:
                return None
            parent = node
        last = page
        num_tokens += fill
    return Chain(num_tokens, last, parent)


def _is_same(node: ChainNode | None, other: ChainNode | None) -> bool:
    if node is other:
        return True
    return node is not None and other is not None and node.key == other.key
