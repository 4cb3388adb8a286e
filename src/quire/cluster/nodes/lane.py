"""One stream of a channel: which exchange gets its pieces, and how its request names it."""

from __future__ import annotations

from typing import Protocol

from quire.server.microserving.channel_frames import CHANNEL_HEADER


class LaneReader(Protocol):
    """The exchange that receives the pieces of a lane. None of its methods may raise."""

    def take_from_lane(self, piece: bytes) -> None: ...
    def lane_left(self) -> None:
        """Note that what follows arrives over the exchange's own connection."""

    def lane_lost(self) -> None:
        """Note that the channel is lost, and with it the pieces that were on the way."""


class Lanes(Protocol):
    """What a lane needs of its channel."""

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
        """The header of the request whose answer may arrive over this lane."""
        return CHANNEL_HEADER.encode(), b"%b.%d" % (self.name.encode(), self.number)

    def open(self, passenger: LaneReader) -> None:
        """Give the lane to ``passenger`` before the request is sent; again for another
        ``passenger`` when the request is repeated."""
        self.passenger = passenger
        self._lanes.opened(self)

    def close(self) -> None:
        """Take no more pieces. Idempotent."""
        self._lanes.closed(self)

    def leave(self) -> None:
        """Ask the node to go on over the exchange's own connection (``lane_left``): the client is
        slow, and must not keep other streams waiting."""
        self._lanes.leave(self)
