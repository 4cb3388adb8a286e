"""Handles: what a program holds. Opaque names with an owner; the bytes are elsewhere.

A handle knows who may use it and what its issuer knows of the thing: how far a page is filled and
at which positions, where an embed stands. Using a handle of another program, or one that was given
back, raises ``UnknownHandle`` here; control checks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from quire.core.errors import InvalidArgument, UnknownHandle
from quire.core.ids import CommandId, EmbedId, PageId, QueueId, TokenSlotId
from quire.programs.api.lane import Lane
from quire.programs.api.reply import Answer


class Handle:
    """Owner and life of one handle. ``lane``: the queue that it was allocated through."""

    __slots__ = ("_freed", "_lane", "_owner", "id")
    kind = "handle"

    def __init__(self, owner: object, lane: Lane, number: int) -> None:
        self.id = number
        self._owner = owner
        self._lane = lane
        self._freed = False

    @property
    def freed(self) -> bool:
        """Given back, or its queue closed."""
        return self._freed or self._lane.closed

    def check(self, owner: object) -> None:
        """Raise ``UnknownHandle`` unless ``owner`` may use it now."""
        if self._owner is not owner:
            raise UnknownHandle(
                f"{self.kind} {self.id} belongs to another program: use handles only in the "
                "program that got them, or export and import pages"
            )
        if self._freed:
            raise UnknownHandle(f"{self.kind} {self.id} has been given back; allocate a new one")
        if self._lane.closed:
            raise UnknownHandle(
                f"{self.kind} {self.id} went with queue {self._lane.id}, through which it was "
                "allocated and which is closed"
            )

    def forget(self) -> None:
        self._freed = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{' freed' if self.freed else ''}>"


class Decoding(Protocol):
    """A decode under way, as the pages that it writes see it."""

    def note_written(self) -> None:
        """Bring its pages up to what it has written by now."""
        ...


class KvPage(Handle):
    """A page of KV cache: ``size`` slots, each empty or written at a position."""

    __slots__ = ("_decodes", "_positions", "page_id", "size")
    kind = "page"

    def __init__(self, owner: object, lane: Lane, page: PageId, positions: Iterable[int] = ()):
        super().__init__(owner, lane, page)
        self.page_id = page
        self.size = lane.model.info.pool.page_size
        self._positions: list[int] | None = list(positions)
        self._decodes: tuple[Decoding, ...] = ()

    @property
    def positions(self) -> tuple[int, ...] | None:
        """Positions of the written slots after everything issued so far; ``None``: not known.

        While a decode is under way these are the positions it has certainly written. Something
        issued onto the page behind a running decode makes them unknown.
        """
        known = self._up_to_now()
        return None if known is None else tuple(known)

    @property
    def fill(self) -> int | None:
        """Number of written slots, as far as known (see ``positions``)."""
        known = self._up_to_now()
        return None if known is None else len(known)

    def _up_to_now(self) -> list[int] | None:
        # decodes say what they have written when it is asked for: seldom, and they write often
        for decode in self._decodes:
            decode.note_written()
        return self._positions

    def append(self, positions: Sequence[int]) -> None:
        if self._positions is not None:
            self._positions.extend(positions)

    def append_from(self, position: int, num_tokens: int) -> int | None:
        """Up to ``num_tokens`` more slots are written at ``position`` and on, as far as there is
        room: how many; ``None`` if nobody knows."""
        positions = self._positions
        if positions is None:
            return None
        num_here = min(self.size - len(positions), num_tokens)
        if num_here == 1:
            positions.append(position)
        elif num_here > 1:
            positions.extend(range(position, position + num_here))
        return max(num_here, 0)

    def cut(self, fill: int) -> None:
        """Slots from ``fill`` on are forgotten; an empty page is known again."""
        if fill == 0 and not self._decodes:
            self._positions = []
        elif self._positions is not None:
            del self._positions[fill:]

    def move(self, shift: int) -> None:
        """Its slots are taken to other positions."""
        if self._positions is not None:
            self._positions = [position + shift for position in self._positions]

    def lose_track(self) -> None:
        self._positions = None

    def before_write(self) -> None:
        """Something issued now will write the page; behind a running decode nobody knows where."""
        if self._decodes:
            self.lose_track()

    def decode_started(self, decode: Decoding) -> None:
        self._decodes += (decode,)

    def decode_ended(self, decode: Decoding) -> None:
        self._decodes = tuple(other for other in self._decodes if other is not decode)


class Embed(Handle):
    """One embedding slot: an input of ``forward`` or a final hidden state."""

    __slots__ = ("embed_id", "position")
    kind = "embed"

    def __init__(self, owner: object, lane: Lane, embed: EmbedId) -> None:
        super().__init__(owner, lane, embed)
        self.embed_id = embed
        self.position: int | None = None


class TokenSlot(Handle):
    """A place for one sampled token that a later command may name before the host has seen it."""

    __slots__ = ()
    kind = "token slot"

    @property
    def slot_id(self) -> TokenSlotId:
        return TokenSlotId(self.id)


class Queue:
    """A command queue. ``after`` gives the same queue with a dependency for one command."""

    __slots__ = ("_lane", "_owner", "dependencies")

    def __init__(self, owner: object, lane: Lane, dependencies: tuple[CommandId, ...] = ()) -> None:
        self._owner = owner
        self._lane = lane
        self.dependencies = dependencies

    @property
    def id(self) -> QueueId:
        return self._lane.id

    @property
    def lane(self) -> Lane:
        return self._lane

    @property
    def page_size(self) -> int:
        return self._lane.model.info.pool.page_size

    def after(self, *answers: Answer) -> Queue:
        """This queue; a command issued through the result waits for ``answers`` of other queues.

        ``forward(q2.after(reply), ...)``: between queues nothing else orders commands.
        """
        ids = tuple(answer.command for answer in answers if answer.lane is not self._lane)
        return Queue(self._owner, self._lane, self.dependencies + ids)

    def check(self, owner: object) -> None:
        if self._owner is not owner:
            raise UnknownHandle(f"queue {self.id} belongs to another program: create your own")
        if self._lane.closed:
            raise UnknownHandle(f"queue {self.id} is closed: create a new one")

    def __repr__(self) -> str:
        return f"<Queue {self.id} on {self._lane.model.id}>"


H = TypeVar("H", bound=Handle)


def as_list(handles: H | Sequence[H]) -> list[H]:
    """One handle or a sequence of them, as a list (Pie's listings pass either)."""
    return [handles] if isinstance(handles, Handle) else list(handles)


def check_all(owner: object, handles: Sequence[Handle], kind: type[Handle]) -> None:
    """All are of ``kind``, usable by ``owner``; else the error of the first that is not."""
    for handle in handles:
        if not isinstance(handle, kind):
            raise InvalidArgument(
                f"expected a {kind.kind} handle, got {type(handle).__name__}: check the order "
                "of the arguments"
            )
        if handle._owner is not owner or handle._freed or handle._lane.closed:
            handle.check(owner)


def check_distinct(handles: Sequence[Handle]) -> None:
    if len({handle.id for handle in handles}) != len(handles):
        raise InvalidArgument(
            f"a {handles[0].kind} stands twice in one list of {len(handles)}: name each once"
        )


def append_positions(pages: Sequence[KvPage], positions: Sequence[int]) -> None:
    """Note that ``positions`` are written at the fill cursors of ``pages``, in order.

    Raises:
        InvalidArgument: the fills are known and there is no room; nothing is noted then.
    """
    places: list[tuple[KvPage, int, int]] = []
    num_placed = 0
    for page in pages:
        known = page._positions
        if known is None or page._decodes:
            for each in pages:  # behind an unknown fill nobody knows what lands where
                each.lose_track()
            return
        room = page.size - len(known)
        if room and num_placed < len(positions):
            places.append((page, num_placed, num_placed + room))
            num_placed += room
    if num_placed < len(positions):
        raise InvalidArgument(
            f"{len(positions)} tokens do not fit into {len(pages)} output pages with {num_placed} "
            "free slots: allocate more pages"
        )
    for page, start, stop in places:
        page.append(positions[start:stop])
