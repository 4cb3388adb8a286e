"""``GraphCache``: optimised graphs that can be used again, because graphs have no values."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from quire.programs.workflow.optimizing.fixpoint import OptimizedGraph


class GraphCache:
    """The latest optimised graphs, by the key of their shape. Several threads may use it."""

    def __init__(self, max_graphs: int = 64) -> None:
        self._max_graphs = max_graphs
        self._graphs: OrderedDict[object, OptimizedGraph] = OrderedDict()
        self._lock = Lock()
        self.num_hits = 0
        self.num_misses = 0

    def find(self, key: object) -> OptimizedGraph | None:
        with self._lock:
            found = self._graphs.get(key)
            if found is None:
                self.num_misses += 1
                return None
            self._graphs.move_to_end(key)
            self.num_hits += 1
            return found

    def keep(self, key: object, graph: OptimizedGraph) -> None:
        with self._lock:
            self._graphs[key] = graph
            while len(self._graphs) > self._max_graphs:
                self._graphs.popitem(last=False)
