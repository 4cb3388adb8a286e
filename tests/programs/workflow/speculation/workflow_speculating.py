"""Carries out a graph as the graph scheduler does, with runs ahead, in any order: what runs and
what runs ahead ends whenever chance lets it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from workflow_reference import ReferenceRun

from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.speculation import Experience, Run, SpeculativeRuns

EFFECTS = frozenset({Op.INGESTION})


class SpeculatingRun:
    """One query. ``hurry``: how much likelier a run ahead is to end next than what must run."""

    def __init__(
        self,
        graph: PrimitiveGraph,
        query: Mapping[str, Any],
        chance: Random,
        experience: Experience,
        hurry: int = 4,
    ) -> None:
        self._graph, self._chance, self._hurry = graph, chance, hurry
        self._reference = ReferenceRun(graph, query, chance)
        self._state = GraphState(graph, query)
        self._ahead = SpeculativeRuns(self._state, experience)
        self._started: dict[str, Primitive] = {}
        self._kept: dict[str, Run] = {}
        self._running: list[Run] = []
        self.begun: list[Run] = []
        self.num_kept = self.num_dropped = 0
        self.with_effects: list[str] = []

    def results(self) -> dict[str, Any]:
        self._start(self._state.start())
        while self._started:
            choice: list[str | Run] = [*self._started, *self._running * self._hurry]
            chosen = self._chance.choice(choice)
            kept = chosen if isinstance(chosen, Run) else self._kept.get(chosen)
            if kept is not None and kept in self._running:
                self._end_run(kept)  # who has kept a run waits for it
            elif not isinstance(chosen, Run):
                self._end(self._started.pop(chosen))
            self._review()
        return self._state.results()

    def _start(self, ready: list[Primitive]) -> None:
        for primitive in ready:
            self._started[primitive.id] = primitive
            if self._state.skipped(primitive) is None:
                kept, used, dropped = self._ahead.claim(primitive)
                self._drop(dropped)
                self.num_kept += used is not None
                if kept is not None:
                    self._kept[primitive.id] = kept
                    self.num_kept += 1

    def _review(self) -> None:
        begin, drop = self._ahead.review()
        self._drop(drop)
        for run in begin:
            self._running.append(run)
            self.begun.append(run)

    def _drop(self, runs: list[Run]) -> None:
        self.num_dropped += len(runs)
        self._running = [run for run in self._running if run not in runs]

    def _end_run(self, run: Run) -> None:
        self._running.remove(run)
        primitive = run.primitive
        is_pure = primitive.op is not Op.TOOL or primitive.config["pure"]
        if primitive.writes or primitive.op in EFFECTS or not is_pure:
            self.with_effects.append(primitive.id)
        fails = self._chance.random() < 0.1
        self._ahead.ended(run, None if fails else self._outputs(primitive, run.inputs))

    def _end(self, primitive: Primitive) -> None:
        outputs = self._state.skipped(primitive)
        if outputs is None:
            inputs = self._state.inputs_of(primitive)
            kept = self._kept.pop(primitive.id, None)
            if kept is not None and kept.outputs is not None:
                outputs = dict(kept.outputs)
            else:
                outputs = self._outputs(primitive, inputs)
            self._ahead.learn(primitive, inputs, outputs)
        self._start(self._state.finish(primitive.id, outputs))

    def _outputs(self, primitive: Primitive, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return self._reference.outputs(primitive, inputs)
