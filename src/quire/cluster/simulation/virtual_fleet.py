"""The nodes of a virtual cluster, and what their router learns about them.

Owns the age of the router's knowledge: figures come with each probe, changes of the prefix indexes
with each poll of the feed, as in production (``NodeWatch``, ``LiveIndex``). Nodes without news are
not polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.cluster.nodes.addresses import NodeAddress
from quire.cluster.nodes.index_feed import change_of
from quire.cluster.nodes.node import NodeFigures, RoutedNode
from quire.cluster.nodes.page_tree import PageTree
from quire.cluster.simulation.virtual_engine import Addresses, VirtualEngine
from quire.cluster.simulation.virtual_loop import VirtualLoop
from quire.cluster.simulation.virtual_node import VirtualNode
from quire.control import IndexPlace
from quire.core.ids import EngineId
from quire.core.scheduler_config import SchedulerConfig
from quire.server.microserving.live_index import INTERVAL_S, MAX_EVENT_KEYS, index_events
from quire.simulation.clock import VirtualClock
from quire.simulation.engines import EngineSpec
from quire.simulation.exchange import LinkCost, VirtualNetwork

PROBE_S = 1.0
"""The default of ``quire router``."""


class VirtualFleet:
    """``num_nodes`` equal nodes, each with one engine like ``spec``. ``call_s``: the time from
    the router to a node and back."""

    def __init__(
        self,
        num_nodes: int,
        spec: EngineSpec,
        scheduler: SchedulerConfig,
        link: LinkCost,
        call_s: float,
        *,
        check: bool = False,
    ) -> None:
        clock = VirtualClock()
        # it has none of the methods for I/O
        self.loop = VirtualLoop(clock)  # type: ignore[abstract]
        self.network = VirtualNetwork(link, self._at)
        self.tree = PageTree()
        addresses = Addresses()
        self.engines = tuple(
            VirtualEngine(
                RoutedNode(NodeAddress(f"node-{number}", "127.0.0.1", 1 + number)),
                VirtualNode(
                    f"node-{number}", spec, scheduler, self.loop, clock, self.network, check=check
                ),
                self.tree,
                addresses,
                call_s,
            )
            for number in range(num_nodes)
        )
        self._places: dict[str, dict[EngineId, IndexPlace]] = {
            engine.name: {} for engine in self.engines
        }
        self._unprobed = set(self.engines)
        for engine in self.engines:
            engine.node.liveness.answered(is_ready=True)
        self.look()
        self.probe()

    def _at(self, time_s: float, call: Callable[[], None]) -> None:
        self.loop.call_at(time_s, call)

    async def watch(self) -> None:
        """Probe and poll until cancelled."""
        num_looks = round(PROBE_S / INTERVAL_S)
        while True:
            for _ in range(num_looks):
                await asyncio.sleep(INTERVAL_S)
                self.look()
            self.probe()

    def look(self) -> None:
        """Read the changes of the nodes' prefix indexes."""
        for engine in self.engines:
            node = engine.virtual
            if not node.has_news:
                continue
            node.has_news = False
            self._unprobed.add(engine)
            known = self._places[engine.name]
            for index in node.controller.index_changes(known):
                known[index.engine] = index.place
                for said in index_events(index, MAX_EVENT_KEYS):
                    self.tree.apply(engine.name, change_of(said))

    def probe(self) -> None:
        """Read the nodes' figures."""
        for engine in self.engines:
            if engine in self._unprobed:
                engine.node.told(_figures(engine.virtual))
        self._unprobed.clear()


def _figures(node: VirtualNode) -> NodeFigures:
    """Return the figures as in ``/v1/microserving/engines``."""
    (engine,) = node.controller.engine_statistics()
    return NodeFigures(
        models=(node.model_id,),
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
        num_blocks=engine.pool.num_blocks,
        num_free_blocks=engine.pool.num_free + engine.pool.num_cached,
        epoch=engine.epoch,
        token_bytes=engine.pool.bytes_per_block // node.model.info.pool.page_size,
        prompt_token_s=engine.prompt_token_s,
    )
