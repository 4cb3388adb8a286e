"""Follows the changes of one node's prefix indexes, and applies them to the router's tree.

Owns the feed: when it begins anew, and how long a node may be silent. Must not know what the tree
is used for.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from quire.cluster.nodes.complaints import Complaints
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.page_tree import PageChange, PageTree, unpacked
from quire.core.errors import UNREADABLE, EngineLost
from quire.server.microserving.index_event import IndexEvent

logger = logging.getLogger(__name__)

SILENCE_S = 10.0
"""After this time without an event the feed is lost; a node sends one every two seconds."""

RETRY_S = 1.0
_MAX_EVENT_BYTES = 8 << 20
_DATA, _DONE = b"data: ", b"data: [DONE]"


class IndexFeed:
    """The feed of ``node`` into ``tree``. ``cluster_headers`` prove that the router knows the
    cluster's key."""

    def __init__(
        self, node: RoutedNode, tree: PageTree, cluster_headers: Mapping[str, str]
    ) -> None:
        self._node = node
        self._tree = tree
        self._headers = [(name.encode(), value.encode()) for name, value in cluster_headers.items()]
        self._complaints = Complaints(f"node {node.name} tells nothing of its prefix index")

    async def run(self) -> None:
        """Follow the feed until cancelled."""
        while True:
            try:
                await self.follow()
            except (EngineLost, TimeoutError, ValueError, *UNREADABLE) as exc:
                self._complaints.tell(str(exc) or f"nothing was heard for {SILENCE_S:g} s")
            await asyncio.sleep(RETRY_S)

    async def follow(self) -> None:
        """Read one feed: the node sends its whole index, then its changes. Returns when the feed
        ends, or when a change is missing.

        Raises:
            EngineLost: it breaks off, or is refused.
            TimeoutError: the node is silent.
            ValueError: an event cannot be read.
        """
        try:
            async with asyncio.timeout(SILENCE_S):
                exchange = await self._node.ask("GET", "/v1/microserving/index", self._headers)
        except (EngineLost, TimeoutError):
            self._tree.forget(self._node.name)
            raise
        with exchange:
            status = (await exchange.head()).status
            if status != HTTPStatus.OK:
                raise EngineLost(f"/v1/microserving/index is {status}")
            self._complaints.settle()
            self._tree.forget(self._node.name)
            held = b""
            while True:
                async with asyncio.timeout(SILENCE_S):
                    piece = await exchange.read()
                *events, held = (held + piece).split(b"\n\n")
                if not piece or not all(map(self._take, events)):
                    return
                if len(held) > _MAX_EVENT_BYTES:
                    raise EngineLost(f"an event has more than {_MAX_EVENT_BYTES} bytes")
                await asyncio.sleep(0)  # a large index must not keep requests waiting

    def _take(self, event: bytes) -> bool:
        """Apply one event; return whether the feed goes on."""
        if not event.startswith(_DATA):
            return True
        if event == _DONE:
            return False
        said = msgspec.json.decode(event[len(_DATA) :], type=IndexEvent)
        change = change_of(said)
        if self._tree.apply(self._node.name, change):
            return True
        logger.warning("node %s: a change of its prefix index is missing", self._node.name)
        return False


def change_of(said: IndexEvent) -> PageChange:
    """Return the change that an event describes.

    Raises:
        ValueError: its keys cannot be read.
    """
    return PageChange(
        engine=said.engine,
        epoch=said.epoch,
        since=said.since,
        number=said.number,
        inserted=unpacked(b64decode(said.inserted, validate=True)),
        evicted=unpacked(b64decode(said.evicted, validate=True)),
        part=said.part,
        num_parts=said.num_parts,
    )
