"""Finds the node that has a stored response, conversation, file, batch, program or session.

The nodes are asked, so any router finds what another one has placed, also after its own restart.
Results are kept only to ask less often. Must not know what the names mean.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from quire.cluster.nodes.node import RoutedNode
from quire.cluster.requests.request import RawHeaders
from quire.core.errors import EngineLost

_MAX_KNOWN = 65_536
_TIMEOUT_S = 5.0
_ACCESS = (b"authorization", b"x-api-key", b"x-request-id")
"""Headers of the client that a question carries: a client does not find what belongs to others."""


class Locator:
    """Asks ``nodes()``, the nodes in force at that moment, except those that ``outdated`` names for
    a path: there the program under that path is no longer valid, since it goes on elsewhere."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[RoutedNode]],
        outdated: Callable[[str], Collection[str]] = lambda path: (),
    ) -> None:
        self._nodes = nodes
        self._outdated = outdated
        self._known: OrderedDict[str, RoutedNode] = OrderedDict()

    async def find(self, lookups: Sequence[str], headers: RawHeaders) -> RoutedNode | None:
        """Return the node that has what one of the paths ``lookups`` names; None if no living node
        has it.

        Raises:
            EngineLost: none does, and not every node could be asked.
        """
        outdated = self._outdated(lookups[0])
        nodes = [one for one in self._nodes() if one.name not in outdated]
        known = self._known.get(lookups[0])
        if known is not None and known.liveness.is_alive and known in nodes:
            self._known.move_to_end(lookups[0])
            return known
        access = [(name, value) for name, value in headers if name in _ACCESS]
        asking = [asyncio.create_task(self._asked(node, lookups, access)) for node in nodes]
        silent = set()
        try:
            for answered in asyncio.as_completed(asking):
                node, has_it = await answered
                if has_it:  # the others need not answer
                    self._remember(lookups[0], node)
                    return node
                if has_it is None:
                    silent.add(node.name)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if silent:
            what = lookups[0].rpartition("/")[2][:100]
            names = ", ".join(node.name for node in nodes if node.name in silent)
            raise EngineLost(
                f"no node that answers has {what!a}, and {names} cannot be asked now: try again"
            )
        return None

    async def find_again(
        self, lookups: Sequence[str], headers: RawHeaders, before: RoutedNode
    ) -> RoutedNode | None:
        """Return another node that has it, or None: ``before``, which ``find`` returned, has
        answered that it does not. Raises ``EngineLost`` as ``find`` does."""
        self.forget(lookups)
        node = await self.find(lookups, headers)
        return None if node is before else node

    def forget(self, lookups: Sequence[str]) -> None:
        """Drop the remembered node, which no longer has it."""
        self._known.pop(lookups[0], None)

    def _remember(self, name: str, node: RoutedNode) -> None:
        self._known[name] = node
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    async def _asked(
        self, node: RoutedNode, lookups: Sequence[str], access: RawHeaders
    ) -> tuple[RoutedNode, bool | None]:
        """Return ``node``, and whether it has what is looked for; None if it does not say."""
        try:
            return node, await self._has(node, lookups, access)
        except (EngineLost, TimeoutError):
            return node, None

    async def _has(self, node: RoutedNode, lookups: Sequence[str], access: RawHeaders) -> bool:
        if node.liveness.is_gone:
            raise EngineLost(f"node {node.name} {node.liveness.absence}")
        async with asyncio.timeout(_TIMEOUT_S):
            for path in lookups:
                with await node.ask("GET", path, access) as exchange:
                    head = await exchange.head()
                    if head.status == 200:
                        return True
                    if head.status >= 500:  # while it loads, for example: it does not say
                        raise EngineLost(f"node {node.name} answers {head.status}")
        return False
