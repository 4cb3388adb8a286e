"""One stream of a channel: which exchange gets its pieces, and how its request names it."""

from __future__ import annotations

from typing import Protocol

from quire.server.microserving.channel_frames import CHANNEL_HEADER


class LaneReader(Protocol):
    """The exchange that the pieces of a lane are for. None of its methods may raise."""

    def take_from_lane(self, piece: bytes) -> None: ...
    def lane_left(self) -> None:
        """What follows comes over its own connection."""

    def lane_lost(self) -> None:
        """What was on the way is lost."""


class Lanes(Protocol):
    """The channel's side."""

    def opened(self, lane: Lane) -> None: ...
    def closed(self, lane: Lane) -> None: ...
    def leave(self, lane: Lane) -> None: ...


class Lane:
    """Stream ``number`` of the channel that is called ``name``."""

    __slots__ = ("_lanes", "name", "number", "passenger")

    def __init__(self, lanes: Lanes, name: str, number: int) -> None:
        self._lanes = lanes
        self.name = name
        self.number = number
        self.passenger: LaneReader | None = None

    @property
    def header(self) -> tuple[bytes, bytes]:
        """Of the request whose answer may come over it."""
        return CHANNEL_HEADER.encode(), b"%b.%d" % (self.name.encode(), self.number)

    def open(self, passenger: LaneReader) -> None:
        """Before the request is sent; again, for another ``passenger``, where it is repeated."""
        self.passenger = passenger
        self._lanes.opened(self)

    def close(self) -> None:
        """Nobody wants more of it. Idempotent."""
        self._lanes.closed(self)

    def leave(self) -> None:
        """Ask the node for ``lane_left``: the client is slow, and must not keep others waiting."""
        self._lanes.leave(self)
