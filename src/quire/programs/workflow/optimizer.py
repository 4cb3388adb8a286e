"""``Graph``: the graph of one query, as built (p-graph) and as it will run (e-graph).

Owns the fixpoint of the passes, and the cache of what they gave for queries of the same shape
(Algorithm 1, GraphOpt).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.workflow.construction import (
    MAX_PRIMITIVES,
    NodeConfig,
    checked_query,
    measured,
    p_graph,
)
from quire.programs.workflow.drawing import drawing
from quire.programs.workflow.durations import seconds_alone
from quire.programs.workflow.engines import Engine
from quire.programs.workflow.graph import PrimitiveGraph
from quire.programs.workflow.passes import Note, OptPass
from quire.programs.workflow.primitives import Op
from quire.programs.workflow.runners import Streamed, check_encoders, check_search, runner_of
from quire.programs.workflow.scheduler import GraphScheduler
from quire.programs.workflow.template import App
from quire.programs.workflow.values import ValueType
from quire.programs.workflow.watching import Step, Watcher

MAX_ROUNDS = 32
NO_CONFIG: NodeConfig = {}


class Optimized(NamedTuple):
    """What the passes made of a p-graph, and what they tell."""

    p_graph: PrimitiveGraph
    e_graph: PrimitiveGraph
    notes: tuple[Note, ...]


class GraphCache:
    """The latest optimised graphs by what shapes them. May be used by several threads."""

    def __init__(self, max_graphs: int = 64) -> None:
        self._max_graphs = max_graphs
        self._graphs: OrderedDict[object, Optimized] = OrderedDict()
        self._lock = Lock()
        self.num_hits = 0
        self.num_misses = 0

    def find(self, key: object) -> Optimized | None:
        with self._lock:
            found = self._graphs.get(key)
            if found is None:
                self.num_misses += 1
                return None
            self._graphs.move_to_end(key)
            self.num_hits += 1
            return found

    def keep(self, key: object, graph: Optimized) -> None:
        with self._lock:
            self._graphs[key] = graph
            while len(self._graphs) > self._max_graphs:
                self._graphs.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Graph:
    """One query of an application, ready to run. ``query``: its checked inputs. ``sizes``: the
    numbers of elements that shape it."""

    app: App
    query: Mapping[str, Any]
    sizes: Mapping[str, int]
    p_graph: PrimitiveGraph
    e_graph: PrimitiveGraph
    notes: tuple[Note, ...]

    @classmethod
    def optimize(
        cls,
        app: App,
        query: Mapping[str, Any],
        config: NodeConfig = NO_CONFIG,
        passes: OptPass | None = None,
        cache: GraphCache | None = None,
    ) -> Graph:
        """Build and optimise the graph of ``query``.

        ``config``: changes to the configuration of components, for this query alone. ``passes``:
        by default the standard four. ``cache``: graphs of queries of the same shape.

        Raises:
            InvalidArgument: an input or configuration that the application does not take, or that
                gives no graph; a pass of the user that breaks a rule.
        """
        passes = passes or OptPass()
        checked = checked_query(app, query)
        configured = app.configured(config)
        sizes = measured(app, checked, configured)
        key = _key(app, configured, sizes, passes)
        found = None if cache is None else cache.find(key)
        if found is None:
            found = optimized(app, configured, sizes, passes)
            if cache is not None:
                cache.keep(key, found)
        return cls(app, checked, sizes, *found)

    @property
    def engines(self) -> list[Engine]:
        """The engines that its primitives need."""
        used = {one.engine for one in self.e_graph.primitives.values()}
        return [engine for name, engine in self.app.engines.items() if name in used]

    async def schedule(self, api: Api, watcher: Watcher | None = None) -> dict[str, Any]:
        """Run the e-graph with the node's engines; returns the results by name. ``watcher`` is told
        of every primitive, and of the text of the results that models write."""
        await check_encoders(api, self.engines)
        await check_search(api, self.engines)
        streamed = self._streamed(watcher)
        primitives = self.e_graph.primitives.values()
        runners = {
            engine.name: runner_of(engine, api, primitives, streamed) for engine in self.engines
        }
        scheduler = GraphScheduler(
            self.e_graph, self.query, runners, api.monotonic, watcher, api.sleep
        )
        return await scheduler.run()

    def _streamed(self, watcher: Watcher | None) -> Streamed | None:
        if watcher is None or not watcher.reads_text:
            return None
        outputs: dict[str, str] = {}
        for name, ref in self.e_graph.results.items():
            source = self.e_graph.primitives.get(ref.primitive)
            if source is None or source.op not in (Op.DECODING, Op.GENERATING):
                continue
            if source.outputs[ref.port] is ValueType.TEXT:
                outputs[source.id] = name
        return Streamed(outputs, watcher)

    def explain(self, steps: Sequence[Step] = ()) -> str:
        """The template, the p-graph and the e-graph as SVG, with what each pass did or why not, and
        what each primitive takes by its engine's profile. ``steps``: of a ``StepLog``, what was
        carried out, so that the times that were measured stand beside those."""
        return drawing(self.app, self.p_graph, self.e_graph, self.notes, steps)


def optimized(app: App, config: NodeConfig, sizes: Mapping[str, int], passes: OptPass) -> Optimized:
    """Apply ``passes`` in their order until a round of them changes nothing."""
    before = p_graph(app, config, sizes)
    profiles = {name: engine.profile for name, engine in app.engines.items()}
    graph, done = before, list[Note]()
    for _ in range(MAX_ROUNDS):
        start, idle = graph, list[Note]()
        for name, rule in passes.passes:
            result = rule(graph, profiles)
            _check(name, graph, result.graph)
            graph = result.graph
            done += [note for note in result.notes if note.applied]
            idle += [note for note in result.notes if not note.applied]
        if graph is start:
            seconds = partial(seconds_alone, profiles=profiles)
            whole, best = before.with_depths(seconds), graph.with_depths(seconds)
            return Optimized(whole, best, (*done, *idle))
    names = ", ".join(name for name, _ in passes.passes)
    raise InvalidArgument(
        f"the passes {names} still change the graph after {MAX_ROUNDS} rounds: a pass must return "
        "the graph that it was given if it has nothing to do",
        param="passes",
    )


def _check(name: str, before: PrimitiveGraph, after: PrimitiveGraph) -> None:
    """A pass keeps the results, and the graph within its bound."""
    if after is before:
        return
    if after.results.keys() != before.results.keys():
        raise InvalidArgument(f"the pass {name!r} changed the results: keep them", param="passes")
    if len(after.primitives) > 4 * MAX_PRIMITIVES:
        raise InvalidArgument(
            f"the pass {name!r} made a graph of {len(after.primitives)} primitives; at most "
            f"{4 * MAX_PRIMITIVES} are allowed: raise the engine's max_efficient_batch",
            param="passes",
        )


def _key(app: App, config: NodeConfig, sizes: Mapping[str, int], passes: OptPass) -> object:
    profiles = tuple((name, one.profile) for name, one in app.engines.items())
    shape = msgspec.json.encode([config, sizes], order="sorted")
    return (app, app.version, shape, passes.passes, profiles)
