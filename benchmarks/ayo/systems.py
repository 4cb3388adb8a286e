"""Names the systems that are compared: who orchestrates, and the policy of control that they run
under.

All have the same engines and the same control, which batches whatever waits: TO is its ``fcfs``.
Under PO a framework's engines take one invocation at a time, as the paper says. Quire's policy
``invocation`` keeps invocations together, and fills what room they leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchmarks.ayo.ahead import FOUND, SAME_ORDER, Counts, Speculation
from benchmarks.ayo.applications import NUM_CHUNKS, Application, models_of
from benchmarks.ayo.asking import Program
from benchmarks.ayo.frameworks import AgentsQuery, ChainQuery, ParallelQuery, StepsQuery
from benchmarks.ayo.modules import MODULES, instructed
from benchmarks.ayo.query import PacedQuery
from benchmarks.ayo.stated import profiled
from benchmarks.ayo.world import World
from quire.programs.workflow import Graph, OptPass
from quire.programs.workflow.speculation import Experience

PASSES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "none": (),
        "1+3": ("prune", "prefill"),
        "2+4": ("stages", "pipeline"),
        "1+2+4": ("prune", "stages", "pipeline"),
        "all": ("prune", "stages", "prefill", "pipeline"),
        "ahead": ("prune", "stages", "prefill", "pipeline", "speculate"),
    }
)
_MODULAR = {
    "LlamaDist": ChainQuery,
    "LlamaDistPC": ParallelQuery,
    "LangGraph": StepsQuery,
    "AutoGen": AgentsQuery,
}


@dataclass(frozen=True, slots=True)
class System:
    """One system. ``framework``: a name of ``frameworks.py``, or quire. ``passes``: those of
    Quire's optimiser. ``cached``: prompts are looked up in the prefix cache. ``same_order`` and
    ``found``: see ``ahead``. ``is_timed``: control is told what remains of a query by its engines'
    profiles."""

    framework: str
    policy: str
    passes: str = "all"
    cached: bool = False
    same_order: float = SAME_ORDER
    found: float = FOUND
    is_timed: bool = True

    def queries(self, application: Application, world: World, core: str) -> Queries:
        return Queries(self, application, world, core)


class Queries:
    """Makes the queries of one application in one world."""

    def __init__(self, system: System, application: Application, world: World, core: str) -> None:
        self._system, self._world = system, world
        self._application = application
        self._core = core
        self._graphs: dict[int, Graph] = {}
        self.counts = Counts()
        self._speculation: Speculation | None = None
        if system.passes == "ahead":
            self._speculation = Speculation(
                Experience(), self.counts, system.same_order, system.found
            )

    def make(self, number: int, searches: bool, num_chunks: int = NUM_CHUNKS) -> Program:
        system, world = self._system, self._world
        made = _MODULAR.get(system.framework)
        if made is None:
            graph, roles = self.graph(num_chunks), self._application.roles
            return PacedQuery(
                number, world, graph, roles,
                searches=searches, cached=system.cached, speculation=self._speculation,
            )  # fmt: skip
        assert num_chunks == NUM_CHUNKS, "modules are stated for one size"
        application = self._application
        modules = instructed(MODULES[application.name](world.stated), application.instruction)
        return made(
            number, world, modules,
            searches=searches, cached=system.cached, bundled=system.policy == "invocation",
        )  # fmt: skip

    def graph(self, num_chunks: int = NUM_CHUNKS) -> Graph:
        if num_chunks not in self._graphs:
            application = self._application
            models = models_of(application, self._core)
            engines = {engine: models[role] for engine, role in application.roles.items()}
            app = profiled(application.make(), self._world.stated, engines)
            passes = OptPass(PASSES[self._system.passes])
            query = application.query(num_chunks)
            graph = Graph.optimize(app, query, application.config, passes)
            if not self._system.is_timed:
                graph = replace(graph, e_graph=graph.e_graph.with_depths(lambda one: 0.0))
            self._graphs[num_chunks] = graph
        return self._graphs[num_chunks]


BASELINES: Mapping[str, System] = MappingProxyType(
    {
        "LlamaDist-PO": System("LlamaDist", "invocation"),
        "LlamaDist-TO": System("LlamaDist", "fcfs"),
        "LlamaDistPC-PO": System("LlamaDistPC", "invocation", cached=True),
        "LlamaDistPC-TO": System("LlamaDistPC", "fcfs", cached=True),
        "LangGraph-PO": System("LangGraph", "invocation", cached=True),
        "LangGraph-TO": System("LangGraph", "fcfs", cached=True),
        "AutoGen-PO": System("AutoGen", "invocation"),
        "AutoGen-TO": System("AutoGen", "fcfs"),
    }
)
OURS: Mapping[str, System] = MappingProxyType(
    {
        "quire": System("quire", "topology"),
        "quire, critical_path": System("quire", "critical_path"),
    }
)
"""Without the prefix cache, as Ayo; a node has it unless it is told otherwise."""
SPECULATING = "quire, speculating"
OURS_AND_AHEAD: Mapping[str, System] = MappingProxyType(
    {**OURS, SPECULATING: System("quire", "topology", "ahead")}
)
"""What runs ahead is not in the paper, and a node does it if it is told to."""
CACHED: Mapping[str, System] = MappingProxyType(
    {name: replace(system, cached=True) for name, system in OURS_AND_AHEAD.items()}
)
