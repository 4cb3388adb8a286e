"""Shows for which module one query waits, and for how long: where the seconds of a chain went.

Of a chain each module takes its time. Of other systems a module takes what it adds to the way that
decides: back from what ended last, to what ended last of that which it waited for, and so on. What
is not on this way is hidden behind it. What runs ahead is right here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from benchmarks.ayo.applications import APPLICATIONS, Application
from benchmarks.ayo.asking import Program
from benchmarks.ayo.figures import CHAIN, PARALLEL, QUIRE, Row, Setting
from benchmarks.ayo.frameworks import ChainQuery, ParallelQuery
from benchmarks.ayo.modules import MODULES, Module
from benchmarks.ayo.playing import play_one
from benchmarks.ayo.query import PacedQuery
from benchmarks.ayo.systems import System
from quire.programs.workflow.graphs.primitives import Op, Primitive

COMPARED: Mapping[str, System] = MappingProxyType(
    {
        "LlamaDist": CHAIN,
        "LlamaDistPC": PARALLEL,
        "quire": QUIRE,
        "quire, speculating": System("quire", "topology", "ahead", same_order=1.0, found=1.0),
    }
)
_MODULE_OF_NODE: Mapping[str, str] = MappingProxyType(
    {
        "chunk": "index", "embed": "index", "ingest": "index",
        "embed_queries": "embed question", "embed_question": "embed question",
        "answer": "synthesis", "guess": "proxy", "needs_search": "judge",
        "surround": "situate", "join": "situate",
    }
)  # fmt: skip


def rows(setting: Setting, core: str) -> list[Row]:
    """Return a row for each module of each application, with its seconds."""
    return [row for one in APPLICATIONS.values() for row in way(setting, one, core)]


def way(setting: Setting, application: Application, core: str) -> list[Row]:
    modules = MODULES[application.name](setting.stated)
    taken = {
        name: _taken(play_one(system, application, setting.stated, core), modules)
        for name, system in COMPARED.items()
    }
    return [
        {"application": application.name, "module": module.name}
        | {name: round(seconds.get(module.name, 0.0), 3) for name, seconds in taken.items()}
        for module in modules
    ]


def _taken(query: Program, modules: list[Module]) -> dict[str, float]:
    if isinstance(query, ChainQuery):
        ended_s = query.ended_s_of
        needs = {module.name: module.needs for module in modules}
        if not isinstance(query, ParallelQuery):  # each begins when the one before it has ended
            in_order = list(ended_s)
            needs = dict(zip(in_order, [(), *((name,) for name in in_order)], strict=False))
        return added(ended_s, needs, lambda name: name)
    assert isinstance(query, PacedQuery), "there are no others"
    ended_s = {one: end_s for one, (_, end_s) in query.spans.items()}
    graph = query.graph.primitives
    parents = {one: (*graph[one].parents, *_before(graph, ended_s, one)) for one in ended_s}
    module_of = module_names(graph, searches_web="web" in {module.name for module in modules})
    return added(ended_s, parents, module_of.__getitem__)


def module_names(graph: Mapping[str, Primitive], *, searches_web: bool = False) -> dict[str, str]:
    """Return the module of each primitive."""
    nodes = {one: primitive.node for one, primitive in graph.items()}
    names = {one: _MODULE_OF_NODE.get(node, node) for one, node in nodes.items()}
    return {
        one: "web" if searches_web and name == "search" else name for one, name in names.items()
    }


def _before(
    graph: Mapping[str, Primitive], ended_s: Mapping[str, float], one: str
) -> Iterator[str]:
    """Yield the primitives that the encoder of ``one`` ended before it: an encoder runs one at a
    time."""
    primitive = graph[one]
    if primitive.op in (Op.EMBEDDING, Op.RERANKING):
        for name, end_s in ended_s.items():
            if graph[name].engine == primitive.engine and end_s < ended_s[one]:
                yield name


def added(
    ended_s: Mapping[str, float],
    parents: Mapping[str, tuple[str, ...]],
    module_of: Callable[[str], str],
    begun_s: float = 0.0,
) -> dict[str, float]:
    """Return by module the seconds that it adds to the critical path of a query that began at
    ``begun_s``."""
    found: dict[str, float] = {}
    one: str | None = max(ended_s, key=lambda name: ended_s[name])
    while one is not None:
        before = max(parents[one], key=lambda name: ended_s[name], default=None)
        began_s = begun_s if before is None else ended_s[before]
        name = module_of(one)
        found[name] = found.get(name, 0.0) + ended_s[one] - began_s
        one = before
    return found
