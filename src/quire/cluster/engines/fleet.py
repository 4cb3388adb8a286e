"""The nodes of a router, which may be exchanged while it serves.

Owns which engines are in force, who watches them, and how one leaves: it gets no new work, finishes
what it has, and is watched until then. Must not know the content of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.nodes.addresses import NodeAddress
from quire.cluster.nodes.index_feed import IndexFeed
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.page_tree import PageTree
from quire.cluster.nodes.watch import NodeWatch


@dataclass(slots=True, eq=False)
class Member:
    """One node with all that follows it. ``feed``: None without the cluster's key. ``keep_records``
    runs until it is cancelled; None if the records of its programs are not kept."""

    engine: NodeEngine
    watch: NodeWatch
    feed: IndexFeed | None
    keep_records: Callable[[], Coroutine[Any, Any, None]] | None = None
    watching: asyncio.Task[None] | None = None
    feeding: asyncio.Task[None] | None = None
    streaming: asyncio.Task[None] | None = None
    keeping: asyncio.Task[None] | None = None
    leaving: asyncio.Task[None] | None = None

    @property
    def node(self) -> RoutedNode:
        return self.engine.node


Join = Callable[[NodeAddress], Member]


class Fleet:
    """The members that are in force or leaving. ``join`` makes a member; no node is asked before
    ``running``. ``tree`` receives the members' feeds. ``on_removed`` is called with a node as soon
    as it is no longer in force. Belongs to one loop."""

    def __init__(
        self,
        addresses: Iterable[NodeAddress],
        join: Join,
        tree: PageTree,
        on_removed: Callable[[RoutedNode], object] = lambda node: None,
    ) -> None:
        self._on_removed = on_removed
        self._join = join
        self._tree = tree
        self._members = {address.name: join(address) for address in addresses}
        self._leaving: set[Member] = set()
        self._changing = asyncio.Lock()
        self._engines = self._in_force()

    @property
    def engines(self) -> tuple[NodeEngine, ...]:
        """The engines in force. A change makes a new tuple, so this one may be iterated at any
        pace."""
        return self._engines

    @property
    def leaving(self) -> tuple[NodeEngine, ...]:
        """The engines that are no longer in force and still have work of this router."""
        return tuple(member.engine for member in self._leaving)

    @property
    def watches(self) -> list[NodeWatch]:
        return [member.watch for member in self._members.values()]

    def named(self, name: str) -> NodeEngine | None:
        member = self._members.get(name)
        return None if member is None else member.engine

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Probe all nodes once, then watch them until the context is left."""
        await asyncio.gather(*(watch.probe() for watch in self.watches))
        for member in self._members.values():
            self._start(member)
        try:
            yield
        finally:
            members = [*self._members.values(), *self._leaving]
            tasks = [task for member in members for task in _tasks(member)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for member in members:
                member.node.pool.close()

    async def change(self, addresses: Iterable[NodeAddress]) -> list[NodeEngine]:
        """Put the nodes at ``addresses`` in force, and no others. New nodes have been probed once
        when this returns. A node with another address is another node.

        Return the engines that leave. Work that they have goes on there.
        """
        async with self._changing:
            wanted = list(addresses)
            new = {one: self._join(one) for one in wanted if one not in self._known()}
            await asyncio.gather(*(member.watch.probe() for member in new.values()))
            known = new | self._known()  # a member that was leaving may have left meanwhile
            members = {one.name: known.get(one) or self._join(one) for one in wanted}
            gone = [one for one in self._members.values() if one not in members.values()]
            self._members = members
            self._engines = self._in_force()
            for member in gone:
                self._let_go(member)
            for member in members.values():
                self._start(member)
            return [member.engine for member in gone]

    # -- inside ------------------------------------------------------------------------------------

    def _in_force(self) -> tuple[NodeEngine, ...]:
        return tuple(member.engine for member in self._members.values())

    def _known(self) -> dict[NodeAddress, Member]:
        """Return the members that are followed, by address, with the leaving ones: those can come
        back."""
        return {one.node.address: one for one in (*self._leaving, *self._members.values())}

    def _start(self, member: Member) -> None:
        """Follow ``member``, unless it is followed already."""
        if member in self._leaving:
            self._leaving.discard(member)
            member.node.is_draining = False
            if member.leaving is not None:
                member.leaving.cancel()
        if member.watching is None:
            member.watching = asyncio.create_task(member.watch.run())
        if member.feeding is None and member.feed is not None:
            member.feeding = asyncio.create_task(member.feed.run())
        if member.streaming is None and member.node.channel is not None:
            member.streaming = asyncio.create_task(member.node.channel.run())
        if member.keeping is None and member.keep_records is not None:
            member.keeping = asyncio.create_task(member.keep_records())

    def _let_go(self, member: Member) -> None:
        member.node.is_draining = True
        if member.feeding is not None:
            member.feeding.cancel()
            member.feeding = None
        self._tree.forget(member.node.name)
        self._on_removed(member.node)
        if member.node.num_outstanding:
            self._leaving.add(member)
            member.leaving = asyncio.create_task(self._leave(member))
        else:
            self._forget(member)

    async def _leave(self, member: Member) -> None:
        """Wait until the member has no work. It is watched until then: if the node dies, its
        requests must end."""
        await member.node.wait_idle()
        self._forget(member)

    def _forget(self, member: Member) -> None:
        self._leaving.discard(member)
        if member.watching is not None:
            member.watching.cancel()
        if member.streaming is not None:
            member.streaming.cancel()
            member.streaming = None
        if member.keeping is not None:
            member.keeping.cancel()
            member.keeping = None
        member.node.pool.retire()


def _tasks(member: Member) -> list[asyncio.Task[None]]:
    tasks = (
        member.watching,
        member.feeding,
        member.streaming,
        member.keeping,
        member.leaving,
    )
    return [task for task in tasks if task is not None]
