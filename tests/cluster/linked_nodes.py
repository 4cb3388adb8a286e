"""Real nodes of which each is reached over a link that can be cut: so its router loses it, as it
would a machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from real_nodes import RealNode
from router_world import World, until, world

from quire.testing.relay import Relay


@dataclass(frozen=True, slots=True)
class LinkedWorld:
    """``links`` by the names of their nodes."""

    w: World
    links: dict[str, Relay]

    async def lose(self, name: str) -> None:
        """Cut the link of a node, until its router thinks it dead."""
        self.links[name].cut()
        await self.w.probe(2)

    async def find_again(self, name: str) -> None:
        """Restore its link, and its router finds it alive."""
        self.links[name].restore()
        await self.w.probe(2)


@asynccontextmanager
async def linked(nodes: Sequence[RealNode], **options: Any) -> AsyncIterator[LinkedWorld]:
    """A router over ``nodes``. ``options``: of ``world``."""
    async with AsyncExitStack() as stack:
        links = {}
        for node in nodes:
            url = urlsplit(node.peer.url)
            relay = Relay((url.hostname or "", url.port or 0))
            links[node.name] = await stack.enter_async_context(relay)
        peers: list[Any] = [
            SimpleNamespace(
                name=node.name,
                peer=SimpleNamespace(url="http://{}:{}".format(*links[node.name].address)),
            )
            for node in nodes
        ]
        w = await stack.enter_async_context(world(nodes=peers, **{"resumes": True, **options}))
        await until(lambda: _keeps_all(w, len(nodes)))  # the router before may still be known
        yield LinkedWorld(w, links)


def _keeps_all(w: World, num_nodes: int) -> bool:
    """Whether the router keeps the records of all nodes."""
    readers = w.router.rescue.readers
    return len(readers) == num_nodes and all(reader.is_told for reader in readers)
