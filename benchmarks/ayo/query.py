"""``PacedQuery`` is one query as Quire runs it, played against control in virtual time.

The graph is the optimiser's, which primitive may start is the graph scheduler's own state, and each
primitive asks control what its runner asks on a node. What belongs to no engine of control
(chunker, database, search engine) takes its stated time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.ayo.ahead import Speculation
from benchmarks.ayo.asking import Done, ModelCall, Place, Program
from benchmarks.ayo.texts import QUERY_TOKENS, tokens_of
from benchmarks.ayo.world import EMBEDDER, RANKER, World
from quire.core.calls import SPARE_PRIORITY
from quire.programs.workflow import Graph
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import AT_ONCE, PREFILLS, Op, Primitive
from quire.programs.workflow.graphs.prompts import PromptPart
from quire.programs.workflow.runners.encoding import NUM_AHEAD
from quire.programs.workflow.speculation import Run, SpeculativeRuns


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
        speculation: Speculation | None = None,
    ) -> None:
        super().__init__(number, world, cached=cached)
        self.spans: dict[str, tuple[float, float]] = {}
        self.graph = graph.e_graph
        self._state = GraphState(self.graph, graph.query)
        self._roles, self._searches = roles, searches
        self._calls: dict[str, ModelCall] = {}
        self._speculation = speculation
        self._ahead: SpeculativeRuns | None = None
        if speculation is not None:
            self._ahead = SpeculativeRuns(self._state, speculation.experience)
        self._stored: list[str] = []
        """Texts that its search finds some of."""
        self._scored = set[str]()
        """Texts that were ranked early."""
        self._finishing: dict[Run, Primitive] = {}
        """Runs ahead that were kept before they had ended."""
        self._began_s: dict[str, float] = {}

    def begin(self) -> None:
        super().begin()
        self._start(self._state.start())

    # -- the graph ---------------------------------------------------------------------------------

    def _start(self, primitives: list[Primitive]) -> None:
        """Start ``primitives`` as the graph scheduler does; what needs no engine ends at once."""
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
            if self._state.skipped(primitive) is not None:
                self.soon(partial(self._finish, primitive))
            elif not self._has_begun(primitive):
                self._carry_out(primitive)
        if not self._state.num_left:
            self.end()
        else:
            self._review()

    def _finish(self, primitive: Primitive) -> None:
        self._start(self._ended(primitive))

    def _ended(self, primitive: Primitive) -> list[Primitive]:
        began_s, now_s = self._began_s[primitive.id], self.world.simulation.now_s
        self.spans[primitive.id] = (began_s, now_s)
        if self._ahead is None:  # nobody compares values
            value = self._searches if primitive.op is Op.CONDITION else None
            return self._state.finish(primitive.id, dict.fromkeys(primitive.outputs, value))
        outputs = self._state.skipped(primitive)
        if outputs is None:
            inputs = self._state.inputs_of(primitive)
            if primitive.op is Op.INGESTION:
                self._stored += inputs["texts"]
            outputs = self._outputs(primitive, inputs)
            self._ahead.learn(primitive, inputs, outputs)
        return self._state.finish(primitive.id, outputs)

    def _outputs(self, primitive: Primitive, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert self._speculation is not None, "only what runs ahead needs values"
        outcome = self._speculation.outcome(self.id, self._searches)
        outputs = outcome.outputs_of(primitive, inputs, self._stored)
        if "state" in primitive.outputs:
            outputs["state"] = self._calls[primitive.id]
        return outputs

    # -- what runs ahead ---------------------------------------------------------------------------

    def _review(self) -> None:
        if self._ahead is None or self._speculation is None:
            return
        begin, drop = self._ahead.review()
        for run in drop:
            self._drop(run)
        for run in begin:
            self._speculation.counts.begun += 1
            self._begin_run(run)

    def _begin_run(self, run: Run) -> None:
        primitive = run.primitive

        def done() -> None:
            self._run_ended(run)

        match primitive.op:
            case Op.DECODING:
                call: ModelCall = run.inputs["state"]
                total = primitive.config["max_tokens"]
                call.write(total, total, done)
            case Op.SEARCH:
                self.world.simulation.after(self.world.stated.web_s, done)
            case Op.RERANKING:
                self._score_early(run, 0)
            case _ if primitive.op in PREFILLS:
                run.held = self._prompt_ahead(run)
                if primitive.op is Op.PARTIAL_PREFILLING:
                    run.held.run(done)
                else:
                    self.soon(done)
            case _:
                raise AssertionError(f"{primitive.id} does not run ahead here")

    def _prompt_ahead(self, run: Run) -> ModelCall:
        primitive = run.primitive
        before: ModelCall | None = run.inputs.get("state")
        if before is not None:
            call = before.fork(_place(primitive), SPARE_PRIORITY)
        else:
            role = self._roles[primitive.engine or ""]
            call = self.open_call(role, _place(primitive), SPARE_PRIORITY)
        for part in primitive.parts:
            call.add(tokens_of(part, self._value_of(part, primitive)))
        return call

    def _score_early(self, run: Run, start: int) -> None:
        """A few texts at a time, as its runner does."""
        self._scored |= set(run.inputs["texts"][:start])
        some = run.inputs["texts"][start : start + NUM_AHEAD]
        if not some:
            self._run_ended(run)
        elif not run.has_failed:
            place, follow = _place(run.primitive), start + NUM_AHEAD
            done = partial(self._score_early, run, follow)
            self.encode(RANKER, len(some), place, done, SPARE_PRIORITY)

    def _run_ended(self, run: Run) -> None:
        if self._ahead is None:
            return
        if run.held is not None:
            outputs: dict[str, Any] = {"state": run.held}
        else:
            outputs = self._outputs(run.primitive, run.inputs)
        self._ahead.ended(run, outputs)
        primitive = self._finishing.pop(run, None)
        if primitive is not None:
            self._finish(primitive)
        elif self._state.num_left:
            self._review()

    def _drop(self, run: Run) -> None:
        assert self._speculation is not None, "something has run ahead"
        self._speculation.counts.dropped += 1
        run.has_failed = True
        if run.primitive.op is Op.DECODING:
            self._speculation.counts.dropped_tokens += run.inputs["state"].num_written
        if run.held is not None:
            run.held.drop()

    def _kept(self, primitive: Primitive) -> Run | None:
        if self._ahead is None or self._speculation is None:
            return None
        run, used, dropped = self._ahead.claim(primitive)
        for one in dropped:
            self._drop(one)
        self._speculation.counts.kept += (run is not None) + (used is not None)
        return run

    def _has_begun(self, primitive: Primitive) -> bool:
        """Return whether ``primitive`` runs ahead or has done so, and keep that run."""
        run = self._kept(primitive)
        if run is None:
            return False
        if run.held is not None:
            run.held.prioritise(0)
            self._calls[primitive.id] = run.held
        if run.outputs is None:
            self._finishing[run] = primitive
        else:
            self.soon(partial(self._finish, primitive))
        return True

    def _carry_out(self, primitive: Primitive) -> None:
        stated, size = self.world.stated, primitive.size or 1

        def done() -> None:
            self._finish(primitive)

        match primitive.op:
            case Op.EMBEDDING:
                self.encode(EMBEDDER, size, _place(primitive), done)
            case Op.RERANKING:
                self._rank(primitive, size, done)
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

    def _rank(self, primitive: Primitive, size: int, done: Done) -> None:
        if self._scored:
            texts: list[str] = self._state.inputs_of(primitive)["texts"]
            size = sum(text not in self._scored for text in texts)
        if size:
            self.encode(RANKER, size, _place(primitive), done)
        else:
            self.soon(done)

    # -- the model ---------------------------------------------------------------------------------

    def _prompt(self, primitive: Primitive) -> None:
        """Add the parts of a prefilling to the prompt of its call."""
        if primitive.op not in PREFILLS:
            return
        run = self._kept(primitive)
        if run is not None:
            run.held.prioritise(0)
            self._calls[primitive.id] = run.held
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

    def _value_of(self, part: PromptPart, primitive: Primitive) -> str:
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
