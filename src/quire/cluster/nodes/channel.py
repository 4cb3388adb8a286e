"""Receives the events of a node's streams over one connection, and gives each to its exchange.

Owns the channel's life and its frames. Must not know what the events mean: an exchange that has a
lane in the channel puts its own bytes and those of the lane in order.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from itertools import count

import msgspec

from quire.cluster.nodes.complaints import Complaints
from quire.cluster.nodes.lane import Lane
from quire.cluster.nodes.pool import NodeExchange
from quire.core.errors import EngineLost
from quire.server.microserving.channel_frames import (
    FRAME,
    HEARTBEAT_S,
    MAX_PIECE_BYTES,
    NAME_HEADER,
)

logger = logging.getLogger(__name__)

SILENCE_S = 5 * HEARTBEAT_S
RETRY_S = 1.0
_PATH = "/v1/microserving/channel"
_MAX_NUMBER = (1 << 32) - 1

Ask = Callable[[str, str, list[tuple[bytes, bytes]], bytes], Awaitable[NodeExchange]]
"""Sends a request to the node: method, target, headers, body. Raises ``EngineLost``."""


class NodeChannel:
    """The channel of one node. ``cluster_headers`` prove that the router knows the cluster's key.
    Belongs to one loop."""

    def __init__(self, node: str, ask: Ask, cluster_headers: Mapping[str, str]) -> None:
        self._node = node
        self._ask = ask
        self._headers = [(name.encode(), value.encode()) for name, value in cluster_headers.items()]
        self._name: str | None = None
        """The channel's name while it is open, else None."""
        self._lanes: dict[int, Lane] = {}
        self._numbers = count(1)
        self._held = b""
        self._silence: asyncio.Timeout | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._complaints = Complaints(f"node {node}: each stream has a connection of its own")

    def lane(self) -> Lane | None:
        """Return a new lane; None if the channel is not open."""
        if self._name is None:
            return None
        number = (next(self._numbers) - 1) % _MAX_NUMBER + 1
        return Lane(self, self._name, number)

    def opened(self, lane: Lane) -> None:
        self._lanes[lane.number] = lane
        if lane.name != self._name:
            self._lose(lane)

    def closed(self, lane: Lane) -> None:
        if self._lanes.get(lane.number) is lane:
            del self._lanes[lane.number]

    def leave(self, lane: Lane) -> None:
        task = asyncio.create_task(self._leave(lane))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def run(self) -> None:
        """Keep the channel open until cancelled."""
        while True:
            try:
                await self.follow()
            except (EngineLost, TimeoutError) as exc:
                self._complaints.tell(str(exc) or f"nothing was heard for {SILENCE_S:g} s")
            await asyncio.sleep(RETRY_S)

    async def follow(self) -> None:
        """Open the channel and follow it to its end.

        Raises:
            EngineLost: it breaks off, or is refused.
            TimeoutError: the node is silent.
        """
        name = secrets.token_hex(16)
        headers = [*self._headers, (NAME_HEADER.encode(), name.encode())]
        async with asyncio.timeout(SILENCE_S) as self._silence:
            with await self._ask("GET", _PATH, headers, b"") as exchange:
                status = (await exchange.head()).status
                if status != HTTPStatus.OK:
                    raise EngineLost(f"{_PATH} is {status}")
                self._complaints.settle()
                self._name, self._held = name, b""
                try:
                    exchange.pass_to(self._take)
                    while piece := await exchange.read():
                        self._take(piece)
                finally:
                    self._lost()

    def _take(self, data: bytes) -> bool:
        """Give the pieces of all whole frames in ``data`` to their lanes."""
        data = self._held + data if self._held else data
        at, end = 0, len(data)
        while end - at >= FRAME.size:
            number, size = FRAME.unpack_from(data, at)
            if size > MAX_PIECE_BYTES:
                raise EngineLost(f"node {self._node} sends a frame of {size} bytes")
            begin = at + FRAME.size
            if begin + size > end:
                break
            at = begin + size
            lane = self._lanes.get(number)
            if lane is not None and lane.passenger is not None:
                if size:
                    lane.passenger.take_from_lane(data[begin:at])
                else:
                    self.closed(lane)
                    lane.passenger.lane_left()
            elif not number and self._silence is not None:
                self._silence.reschedule(asyncio.get_running_loop().time() + SILENCE_S)
        self._held = data[at:]
        return True

    def _lost(self) -> None:
        self._name = None
        for lane in list(self._lanes.values()):
            self._lose(lane)

    def _lose(self, lane: Lane) -> None:
        self.closed(lane)
        if lane.passenger is not None:
            lane.passenger.lane_lost()

    async def _leave(self, lane: Lane) -> None:
        headers = [*self._headers, (b"content-type", b"application/json")]
        body = msgspec.json.encode({"channel": lane.name, "stream": lane.number})
        try:
            async with asyncio.timeout(SILENCE_S):
                with await self._ask("POST", f"{_PATH}/leave", headers, body) as exchange:
                    status = (await exchange.head()).status
            if status == HTTPStatus.NO_CONTENT:
                return
            why = f"{_PATH}/leave is {status}"
        except (EngineLost, TimeoutError) as exc:
            why = str(exc) or f"no answer within {SILENCE_S:g} s"
        logger.warning("node %s cannot hold back a slow stream: %s", self._node, why)
        if self._lanes.get(lane.number) is lane:
            self._lose(lane)
