"""Handles: a program's names for its pages, embeds, token slots and queues.

A handle knows its owner and what the issuer knows of the resource: a page's fill and positions, an
embed's position. Using a handle of another program, or one that was freed, raises ``UnknownHandle``
here; control checks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from quire.core.errors import InvalidArgument, UnknownHandle
from quire.core.ids import CommandId, EmbedId, PageId, QueueId, TokenSlotId
from quire.programs.api.queue_state import QueueState
from quire.programs.api.reply import CommandFuture


class Handle:
    """Owner and lifetime of one handle. ``queue_state``: of the queue on which it was
    allocated."""

    __slots__ = ("_freed", "_owner", "_queue_state", "id")
    kind = "handle"

    def __init__(self, owner: object, queue_state: QueueState, number: int) -> None:
        self.id = number
        self._owner = owner
        self._queue_state = queue_state
        self._freed = False

    @property
    def freed(self) -> bool:
        """Whether the handle was freed, or its queue was closed."""
        return self._freed or self._queue_state.closed

    def check(self, owner: object) -> None:
        """Raise ``UnknownHandle`` unless ``owner`` may use it now."""
        if self._owner is not owner:
            raise UnknownHandle(
                f"{self.kind} {self.id} belongs to another program: use handles only in the "
                "program that got them, or export and import pages"
            )
        if self._freed:
            raise UnknownHandle(f"{self.kind} {self.id} was freed: allocate a new one")
        if self._queue_state.closed:
            raise UnknownHandle(
                f"{self.kind} {self.id} was freed with queue {self._queue_state.id}, on which it "
                "was allocated: allocate a new one on an open queue"
            )

    def forget(self) -> None:
        self._freed = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{' freed' if self.freed else ''}>"


class Decoding(Protocol):
    """A running decode, as seen by the pages that it writes."""

    def note_written(self) -> None:
        """Update its pages with what it has written so far."""
        ...


class KvPage(Handle):
    """A page of KV cache: ``size`` slots, each empty or written at a position."""

    __slots__ = ("_decodes", "_positions", "page_id", "size")
    kind = "page"

    def __init__(
        self, owner: object, queue_state: QueueState, page: PageId, positions: Iterable[int] = ()
    ):
        super().__init__(owner, queue_state, page)
        self.page_id = page
        self.size = queue_state.model.info.pool.page_size
        self._positions: list[int] | None = list(positions)
        self._decodes: tuple[Decoding, ...] = ()

    @property
    def positions(self) -> tuple[int, ...] | None:
        """Positions of the written slots after all commands issued so far; ``None`` if not known.

        During a decode these are the positions that it has reported. A command that writes the page
        after a running decode makes them unknown.
        """
        known = self._up_to_now()
        return None if known is None else tuple(known)

    @property
    def fill(self) -> int | None:
        """Number of written slots, if known (see ``positions``)."""
        known = self._up_to_now()
        return None if known is None else len(known)

    def _up_to_now(self) -> list[int] | None:
        # updated on demand: positions are read seldom, and decodes write often
        for decode in self._decodes:
            decode.note_written()
        return self._positions

    def append(self, positions: Sequence[int]) -> None:
        if self._positions is not None:
            self._positions.extend(positions)

    def append_from(self, position: int, num_tokens: int) -> int | None:
        """Note that up to ``num_tokens`` more slots are written, at ``position`` and following.
        Returns how many fit into the page; ``None`` if its fill is not known."""
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
        """Forget the slots from ``fill`` on. The positions of an empty page are known again."""
        if fill == 0 and not self._decodes:
            self._positions = []
        elif self._positions is not None:
            del self._positions[fill:]

    def move(self, shift: int) -> None:
        """Note that its slots are moved by ``shift`` positions."""
        if self._positions is not None:
            self._positions = [position + shift for position in self._positions]

    def lose_track(self) -> None:
        self._positions = None

    def before_write(self) -> None:
        """Note that a command which writes the page is issued. After a running decode its positions
        are not known."""
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

    def __init__(self, owner: object, queue_state: QueueState, embed: EmbedId) -> None:
        super().__init__(owner, queue_state, embed)
        self.embed_id = embed
        self.position: int | None = None


class TokenSlot(Handle):
    """Device memory for one sampled token. A later command may name it before the host has seen the
    token."""

    __slots__ = ()
    kind = "token slot"

    @property
    def slot_id(self) -> TokenSlotId:
        return TokenSlotId(self.id)


class Queue:
    """A command queue. ``after`` returns the same queue with dependencies for one command."""

    __slots__ = ("_owner", "_state", "dependencies")

    def __init__(
        self, owner: object, state: QueueState, dependencies: tuple[CommandId, ...] = ()
    ) -> None:
        self._owner = owner
        self._state = state
        self.dependencies = dependencies

    @property
    def id(self) -> QueueId:
        return self._state.id

    @property
    def state(self) -> QueueState:
        return self._state

    @property
    def page_size(self) -> int:
        return self._state.model.info.pool.page_size

    def after(self, *futures: CommandFuture) -> Queue:
        """This queue, for a command that also waits for the ends of other queues' commands.

        ``forward(q2.after(reply), ...)``: apart from this, commands of different queues are not
        ordered.
        """
        ids = tuple(future.command for future in futures if future.queue_state is not self._state)
        return Queue(self._owner, self._state, self.dependencies + ids)

    def check(self, owner: object) -> None:
        if self._owner is not owner:
            raise UnknownHandle(f"queue {self.id} belongs to another program: create your own")
        if self._state.closed:
            raise UnknownHandle(f"queue {self.id} is closed: create a new one")

    def __repr__(self) -> str:
        return f"<Queue {self.id} on {self._state.model.id}>"


H = TypeVar("H", bound=Handle)


def as_list(handles: H | Sequence[H]) -> list[H]:
    """One handle or a sequence of handles, as a list (Pie's listings pass either)."""
    return [handles] if isinstance(handles, Handle) else list(handles)


def check_all(owner: object, handles: Sequence[Handle], kind: type[Handle]) -> None:
    """Check that all are of ``kind`` and usable by ``owner``; raise the error of the first that is
    not."""
    for handle in handles:
        if not isinstance(handle, kind):
            raise InvalidArgument(
                f"expected a {kind.kind} handle, got {type(handle).__name__}: check the order "
                "of the arguments"
            )
        if handle._owner is not owner or handle._freed or handle._queue_state.closed:
            handle.check(owner)


def check_distinct(handles: Sequence[Handle]) -> None:
    if len({handle.id for handle in handles}) != len(handles):
        raise InvalidArgument(
            f"a {handles[0].kind} appears twice in one list of {len(handles)}: name each once"
        )


def append_positions(pages: Sequence[KvPage], positions: Sequence[int]) -> None:
    """Note that ``positions`` are written at the fill cursors of ``pages``, in order.

    Raises:
        InvalidArgument: the fills are known and the slots do not suffice; nothing is noted then.
    """
    places: list[tuple[KvPage, int, int]] = []
    num_placed = 0
    for page in pages:
        known = page._positions
        if known is None or page._decodes:
            for each in pages:  # after an unknown fill, all positions are unknown
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
