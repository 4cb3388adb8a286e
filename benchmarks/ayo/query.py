"""``PacedQuery``: one query as Quire runs it, played against control in virtual time.

The graph is the optimiser's, which primitive may start is the graph scheduler's own state, and each
primitive asks control what its runner asks on a node. What belongs to no engine of control
(chunker, database, search engine) takes its stated time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.ayo.asking import ModelCall, Place, Program
from benchmarks.ayo.texts import QUERY_TOKENS, tokens_of
from benchmarks.ayo.world import EMBEDDER, RANKER, World
from quire.programs.workflow import Graph
from quire.programs.workflow.object_store import GraphState
from quire.programs.workflow.primitives import AT_ONCE, PREFILLS, Op, Primitive
from quire.programs.workflow.prompts import Part


class PacedQuery(Program):
    """``roles``: the name of the model that serves each engine of kind llm. ``searches``: what its
    conditions say. ``spans``: the seconds from and to which each primitive was at work."""

    def __init__(
        self,
        number: int,
        world: World,
        graph: Graph,
        roles: Mapping[str, str],
        *,
        searches: bool = True,
        cached: bool = False,
    ) -> None:
        super().__init__(number, world, cached=cached)
        self.spans: dict[str, tuple[float, float]] = {}
        self._state = GraphState(graph.e_graph, graph.query)
        self._roles, self._searches = roles, searches
        self._calls: dict[str, ModelCall] = {}
        self._began_s: dict[str, float] = {}

    def begin(self) -> None:
        super().begin()
        self._start(self._state.start())

    # -- the graph ---------------------------------------------------------------------------------

    def _start(self, primitives: list[Primitive]) -> None:
        """As the graph scheduler does: what no engine works on ends at once."""
        ready, waiting = list(primitives), list[Primitive]()
        while ready:
            primitive = ready.pop(0)
            self._began_s[primitive.id] = self.world.simulation.now_s
            if primitive.op in AT_ONCE:
                self._prompt(primitive)
                ready = self._ended(primitive) + ready
            else:
                waiting.append(primitive)
        for primitive in sorted(waiting, key=lambda one: -one.depth):
            if self._state.skipped(primitive) is None:
                self._carry_out(primitive)
            else:
                self.soon(partial(self._finish, primitive))
        if not self._state.num_left:
            self.end()

    def _finish(self, primitive: Primitive) -> None:
        self._start(self._ended(primitive))

    def _ended(self, primitive: Primitive) -> list[Primitive]:
        began_s, now_s = self._began_s[primitive.id], self.world.simulation.now_s
        self.spans[primitive.id] = (began_s, now_s)
        value = self._searches if primitive.op is Op.CONDITION else None
        return self._state.finish(primitive.id, dict.fromkeys(primitive.outputs, value))

    def _carry_out(self, primitive: Primitive) -> None:
        stated, size = self.world.stated, primitive.size or 1

        def done() -> None:
            self._finish(primitive)

        match primitive.op:
            case Op.EMBEDDING:
                self.encode(EMBEDDER, size, _place(primitive), done)
            case Op.RERANKING:
                self.encode(RANKER, size, _place(primitive), done)
            case Op.PARTIAL_PREFILLING:
                self._prompt(primitive)
                self._calls[primitive.id].run(done)
            case Op.DECODING | Op.PARTIAL_DECODING:
                self._decode(primitive)
            case Op.CHUNK | Op.PARSE:
                self.world.server("chunker").ask(stated.chunk_s, done)
            case Op.INGESTION:
                self.world.server("database").ask(stated.ingest_s * size, done)
            case Op.SEARCHING:
                self.world.server("database").ask(stated.search_s * size, done)
            case Op.SEARCH:
                self.world.simulation.after(stated.web_s, done)
            case _:
                self.soon(done)

    # -- the model ---------------------------------------------------------------------------------

    def _prompt(self, primitive: Primitive) -> None:
        """What a prefilling adds to its call's prompt."""
        if primitive.op not in PREFILLS:
            return
        state = primitive.inputs.get("state")
        if state is None:
            assert primitive.engine is not None, "a prefilling has an engine"
            call = self.open_call(self._roles[primitive.engine], _place(primitive))
        else:
            call = self._calls[state.primitive]
            call.place(_place(primitive))
        self._calls[primitive.id] = call
        for part in primitive.parts:
            call.add(tokens_of(part, self._value_of(part, primitive)))

    def _value_of(self, part: Part, primitive: Primitive) -> str:
        return f"{self.id}/{primitive.inputs[part.name]}" if part.name else ""

    def _decode(self, primitive: Primitive) -> None:
        call = self._calls[primitive.inputs["state"].primitive]
        self._calls[primitive.id] = call
        if primitive.op is Op.PARTIAL_DECODING:
            total = QUERY_TOKENS * primitive.config["elements"]
            mark = QUERY_TOKENS * (primitive.first + 1)
        else:
            total = mark = primitive.config["max_tokens"]
        call.write(total, mark, lambda: self._finish(primitive))


def _place(primitive: Primitive) -> Place:
    return primitive.depth, primitive.number, primitive.remaining_us
