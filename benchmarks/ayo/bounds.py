"""Computes the least seconds of one query that any order and any passes could reach on these
engines, and so the largest speed-up over LlamaDist.

What a value needs is taken from the graph. A call's first token comes not before each part of its
prompt is known and it and what stands behind it is prefilled, in one message. An encoder and the
database do one thing at a time, and the instances of a model prefill side by side: what waits for
several calls waits for the sum of their work. Nothing is supposed (``speculate``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import dropwhile

from benchmarks.ayo.applications import APPLICATIONS, Application, models_of
from benchmarks.ayo.figures import CHAIN, QUIRE, Row, Setting
from benchmarks.ayo.playing import play_one, seconds_of
from benchmarks.ayo.stated import CORES, ModelTimes, Stated
from benchmarks.ayo.systems import System
from benchmarks.ayo.texts import QUERY_TOKENS, length_of
from benchmarks.ayo.world import NUM_MODEL_INSTANCES, World
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import PREFILLS, Op, Primitive

WHOLE_PROMPTS = System("quire", "topology", "1+2+4")
"""Its graph has one prefilling for each call; the bound splits it wherever that helps."""
_SERVED_BY: Mapping[Op, str] = {
    Op.EMBEDDING: "embedder", Op.RERANKING: "ranker", Op.INGESTION: "database",
    Op.SEARCHING: "database",
}  # fmt: skip


def rows(setting: Setting) -> list[Row]:
    return [
        row(setting.stated, application, core)
        for application in APPLICATIONS.values()
        for core in CORES
    ]


def row(stated: Stated, application: Application, core: str) -> Row:
    chain_s = seconds_of(play_one(CHAIN, application, stated, core))
    quire_s = seconds_of(play_one(QUIRE, application, stated, core))
    least_s = least(stated, application, core)
    return {
        "application": application.name,
        "core": core,
        "LlamaDist s": round(chain_s, 3),
        "quire s": round(quire_s, 3),
        "least s": round(least_s, 3),
        "faster": round(chain_s / quire_s, 2),
        "at most": round(chain_s / least_s, 2),
    }


def least(stated: Stated, application: Application, core: str) -> float:
    """Return the seconds below which one query that searches cannot end."""
    models = models_of(application, core)
    world = World("topology", stated, models)
    graph = WHOLE_PROMPTS.queries(application, world, core).graph().e_graph
    times = {engine: stated.models[models[role]] for engine, role in application.roles.items()}
    return Bound(graph, stated, times).seconds()


@dataclass(frozen=True, slots=True)
class _Part:
    known_s: float
    num_tokens: int


class Bound:
    """``times``: of the model of each engine of kind llm."""

    def __init__(
        self, graph: PrimitiveGraph, stated: Stated, times: Mapping[str, ModelTimes]
    ) -> None:
        self._graph, self._stated, self._times = graph, stated, times
        self._begins: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._prompts: dict[str, list[_Part]] = {}

    def seconds(self) -> float:
        for one in self._graph.order:
            primitive = self._graph.primitives[one]
            direct = max((self._ends[parent] for parent in primitive.parents), default=0.0)
            self._begins[one] = max(direct, self._behind_servers(one))
            self._ends[one] = self._ended(primitive)
        return max(self._ends.values())

    def _ended(self, primitive: Primitive) -> float:
        begins_s = self._begins[primitive.id]
        if primitive.op in PREFILLS:
            state = primitive.inputs.get("state")
            before = [] if state is None else self._prompts[state.primitive]
            parts = [
                _Part(self._known(primitive, part.name), length_of(part))
                for part in primitive.parts
            ]
            self._prompts[primitive.id] = [*before, *parts]
            return begins_s
        if primitive.op not in (Op.DECODING, Op.PARTIAL_DECODING):
            return begins_s + self._work([primitive])
        source = primitive.inputs["state"].primitive
        self._prompts[primitive.id] = self._prompts[source]
        times = self._times[primitive.engine or ""]
        if primitive.op is Op.PARTIAL_DECODING and primitive.first:  # it goes on with the answer
            return begins_s + QUERY_TOKENS * (times.step_s + times.row_s)
        num_left, first_s = 0, begins_s
        for part in reversed(self._prompts[source]):
            num_left += part.num_tokens
            prefilled_s = times.prefill_s + times.prompt_token_s * num_left
            first_s = max(first_s, part.known_s + prefilled_s)
        return first_s + (_tokens(primitive) - 1) * (times.step_s + times.row_s)

    def _known(self, primitive: Primitive, name: str | None) -> float:
        """Return when a part of a prompt is known at the earliest."""
        if name is None or primitive.inputs[name].from_query:
            return 0.0
        return self._ends[primitive.inputs[name].primitive]

    def _behind_servers(self, one: str) -> float:
        """Return when ``one`` can begin at the earliest, by what it needs of each server."""
        ways = self._ways(one)
        served: dict[str, list[Primitive]] = {}
        for name in ways:
            primitive = self._graph.primitives[name]
            if primitive.op in _SERVED_BY:
                served.setdefault(_SERVED_BY[primitive.op], []).append(primitive)
            elif primitive.op is Op.DECODING and self._late(primitive):
                served.setdefault(f"model {primitive.engine}", []).append(primitive)
        least_s = 0.0
        for all_of_it in served.values():
            for way_s in {ways[each.id] for each in all_of_it}:
                some = [each for each in all_of_it if ways[each.id] >= way_s]
                for begin_s in {self._from_s(each) for each in some}:
                    late = [each for each in some if self._from_s(each) >= begin_s]
                    least_s = max(least_s, begin_s + self._work(late) + way_s)
        return least_s

    def _from_s(self, primitive: Primitive) -> float:
        """Return from when a server can work for ``primitive``."""
        if primitive.op is Op.DECODING:
            return min(part.known_s for part in self._late(primitive) if part.known_s > 0.0)
        return self._begins[primitive.id]

    def _late(self, primitive: Primitive) -> list[_Part]:
        """Return the parts of a call's prompt from the first that is not known from the start."""
        parts = self._prompts[primitive.inputs["state"].primitive]
        return list(dropwhile(lambda part: part.known_s <= 0.0, parts))

    def _ways(self, one: str) -> dict[str, float]:
        """Return the seconds from the end of each ancestor to the beginning of ``one``."""
        needed = self._graph.ancestors[one]
        ways: dict[str, float] = {}
        for name in reversed([each for each in self._graph.order if each in needed]):
            ways[name] = max(
                (
                    ways[child] + self._alone(self._graph.primitives[child])
                    for child in self._graph.children[name]
                    if child in needed
                ),
                default=0.0,
            )
        return ways

    def _alone(self, primitive: Primitive) -> float:
        if primitive.op not in (Op.DECODING, Op.PARTIAL_DECODING):
            return self._work([primitive])
        times = self._times[primitive.engine or ""]
        if primitive.op is Op.PARTIAL_DECODING:
            return (QUERY_TOKENS - 1) * (times.step_s + times.row_s)
        return times.prefill_s + (_tokens(primitive) - 1) * (times.step_s + times.row_s)

    def _work(self, primitives: Iterable[Primitive]) -> float:
        """Return the seconds of primitives of one server: in the fullest batches, or the prompts of
        a model on all its instances."""
        stated, sum_s, nums = self._stated, 0.0, {Op.EMBEDDING: 0, Op.RERANKING: 0}
        for primitive in primitives:
            size = primitive.size or 1
            match primitive.op:
                case Op.EMBEDDING | Op.RERANKING:
                    nums[primitive.op] += size
                case Op.CHUNK | Op.PARSE:
                    sum_s += stated.chunk_s
                case Op.INGESTION:
                    sum_s += stated.ingest_s * size
                case Op.SEARCHING:
                    sum_s += stated.search_s * size
                case Op.SEARCH:
                    sum_s += stated.web_s
                case Op.DECODING:
                    token_s = self._times[primitive.engine or ""].prompt_token_s
                    num = sum(part.num_tokens for part in self._late(primitive))
                    sum_s += token_s * num / NUM_MODEL_INSTANCES
        num, most = nums[Op.EMBEDDING], stated.max_batch
        sum_s += -(-num // most) * stated.encode_s + num * stated.encode_one_s
        num = nums[Op.RERANKING]
        return sum_s + -(-num // most) * stated.rank_s + num * stated.rank_one_s


def _tokens(primitive: Primitive) -> int:
    if primitive.op is Op.PARTIAL_DECODING:
        return QUERY_TOKENS
    num: int = primitive.config["max_tokens"]
    return num
