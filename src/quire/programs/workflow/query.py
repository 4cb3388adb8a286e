"""``Query``: one query of an application, as a program of its own.

For code that answers queries: it refuses what it can before the program is launched, keeps the
error as it was raised, and with ``tells`` lets the program send events to its client. Must not know
how they reach that client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from quire.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NeverWithinQuota,
    QuireError,
)
from quire.core.quotas import Quotas
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet
from quire.programs.workflow.documents import checked_files, is_text
from quire.programs.workflow.durable import Journal, QueryId
from quire.programs.workflow.durable.asking import check_resumed
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.execution.watching import PrimitiveStep, StepLog
from quire.programs.workflow.graphs.growing_graph import GrowingGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.optimizing.apart import built_apart
from quire.programs.workflow.optimizing.construction import NodeConfig, checked_query
from quire.programs.workflow.optimizing.graph_cache import GraphCache
from quire.programs.workflow.passes import OptPass, read_passes
from quire.programs.workflow.query_graph import NO_CONFIG, Graph
from quire.programs.workflow.running import durably, for_clients, query_program, with_texts
from quire.programs.workflow.speculation import SpeculationFigures
from quire.programs.workflow.template.app import App


class Query:
    """``query``: None to resume a kept query. ``deadline_s``: seconds after which it ends with an
    error. ``max_generated_tokens``: the limit of all its models together. ``name``: the name under
    which it is kept. ``speculate``: primitives run ahead, in spare time.

    ``graph``: None until it is built. ``error``: why the query failed, once it has. ``log``: the
    primitives that have run, unless the query ``tells``."""

    def __init__(
        self,
        app: App,
        query: Mapping[str, Any] | None,
        config: NodeConfig = NO_CONFIG,
        *,
        passes: OptPass | None = None,
        cache: GraphCache | None = None,
        tells: bool = False,
        deadline_s: float | None = None,
        max_generated_tokens: int | None = None,
        name: QueryId | None = None,
        log: StepLog | None = None,
        speculate: bool = False,
    ) -> None:
        for field, bound in (
            ("deadline_s", deadline_s), ("max_generated_tokens", max_generated_tokens)
        ):  # fmt: skip
            if bound is not None and not bound > 0:
                raise InvalidArgument(f"{field} is {bound}: give more than 0", param=field)
        check_resumed(name is not None and name.resume, query, config)
        self._name = name
        self._deadline_s, self._max_tokens = deadline_s, max_generated_tokens
        self.app = app
        self.graph: Graph | None = None
        self.error: QuireError | None = None
        self.log = log or StepLog()
        self._query, self._config = query, config
        passes = read_passes(passes)
        if speculate:
            passes = (passes or app.passes).speculating()
        self._passes, self._cache, self._tells = passes, cache, tells
        self._watcher: StepLog | QueryTelling = self.log

    @property
    def num_primitives(self) -> int:
        """The number of primitives of the graph so far, grown and kept ones included."""
        num_before = self._watcher.num_before
        if self.graph is None:
            return num_before
        return max(num_before, len((self._watcher.graph or self.graph.e_graph).primitives))

    @property
    def num_kept(self) -> int:
        """The number of primitives that did not run again."""
        return self._watcher.num_kept

    @property
    def speculates(self) -> bool:
        """Whether primitives run ahead."""
        return self.passes.speculates

    @property
    def passes(self) -> OptPass:
        """What optimises its graph."""
        return self._passes or self.app.passes

    @property
    def speculation(self) -> SpeculationFigures:
        """Figures of the primitives that ran before they were known to be needed."""
        return self._watcher.speculation

    def prepare(self) -> None:
        """Check the query and build its graph; this may take long for long documents.

        The program builds the graph if a document must be read first, or if the query is resumed.


        Raises:
            InvalidArgument: see ``Graph.optimize``.
        """
        if self._query is None:
            return
        self.app.configured(self._config)
        given = checked_query(self.app, self._query, checked_files)
        if all(
            all(map(is_text, given[name]))
            for name, kind in self.app.query_inputs.items()
            if kind is ValueType.DOCUMENTS
        ):
            self.graph = self._optimized(self._query)

    async def prepared(self) -> None:
        """``prepare`` beside the loop.

        Raises:
            InvalidArgument: see ``prepare`` and ``built_apart``.
        """
        await built_apart(self.app, self.passes, self.prepare)

    @property
    def models(self) -> dict[str, str]:
        """The models that its components name in place of their engines', by component."""
        configured = self.app.configured(self._config)
        named = {
            node.name: configured[node.name].get("model")
            for node in self.app.nodes
            if node.engine in self.app.engines and self.app.engines[node.engine].kind == "llm"
        }
        return {name: model for name, model in named.items() if isinstance(model, str)}

    def program(self) -> Inferlet:
        """Return the program, which takes no arguments; launch it once."""

        async def main(api: Api) -> dict[str, Any]:
            try:
                return await self._bounded(api)
            except QuireError as exc:
                self.error = exc
                raise

        quotas = Quotas(max_generated_tokens=self._max_tokens)
        return query_program(self.app, main, quotas)

    async def _bounded(self, api: Api) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._deadline_s) as timer:
                return await for_clients(self.app, await self._run(api))
        except TimeoutError as exc:
            if not timer.expired():
                raise
            raise DeadlineExceeded(
                f"{self.app.name} has not ended within its deadline of {self._deadline_s:g} s: "
                "raise deadline_s, or ask for less"
            ) from exc
        except NeverWithinQuota as exc:
            limit = exc.details.get("max_generated_tokens")
            if limit is None or limit != self._max_tokens:
                raise
            raise NeverWithinQuota(
                f"{self.app.name} needs more than the {self._max_tokens} generated tokens that its "
                f"models have together: raise max_generated_tokens ({exc.message})"
            ) from exc

    async def _run(self, api: Api) -> dict[str, Any]:
        if self._tells:
            self._watcher = QueryTelling(api)
        answer = partial(self._answer, api)
        if self._name is not None:
            return await durably(
                api, self.app, self._query, self._config, self._name, answer, self._watcher
            )
        read: Mapping[str, Any] = {}
        if self.graph is None:
            assert self._query is not None, "a query that is resumed has a name"
            read = await with_texts(api.read_document, self.app, self._query, self._config)
        return await answer(read, self._config, None)

    async def _answer(
        self, api: Api, read: Mapping[str, Any], config: NodeConfig, journal: Journal | None
    ) -> dict[str, Any]:
        """Build the graph if there is none and run it. ``read``: the inputs, with documents as
        texts."""
        if self.graph is None:
            self._config = config
            self.graph = await built_apart(self.app, self.passes, partial(self._optimized, read))
        if isinstance(self._watcher, QueryTelling):
            await self._watcher.planned(self.graph)
        return await self.graph.schedule(api, self._watcher, journal)

    def _optimized(self, query: Mapping[str, Any]) -> Graph:
        return Graph.optimize(self.app, query, self._config, self._passes, self._cache)


class QueryTelling:
    """A ``Watcher`` that sends every event to the program's client as JSON. Times are in seconds
    since the query began."""

    reads_text = True

    def __init__(self, api: Api) -> None:
        self._api = api
        self._began_s = api.monotonic()
        self.num_kept = self.num_before = 0
        """The numbers of primitives that do not run again, and of all before the interruption."""
        self.speculation = SpeculationFigures()
        self.graph: GrowingGraph | None = None
        """The grown graph; None if it has not grown."""

    async def planned(self, graph: Graph) -> None:
        """Report that the graph is built."""
        await self._send({"type": "planned", "num_primitives": len(graph.e_graph.primitives)})

    async def resumed(self, num_kept: int, num_primitives: int) -> None:
        self.num_kept, self.num_before = num_kept, num_primitives
        event = {"type": "resumed", "num_kept": num_kept, "num_primitives": num_primitives}
        await self._send(event)

    async def began(self, primitive: Primitive, started_s: float) -> None:
        await self._tell("primitive.started", primitive, time_s=self._since(started_s))

    async def ended(self, step: PrimitiveStep) -> None:
        await self._tell(
            "primitive.ended",
            step.primitive,
            time_s=self._since(step.ended_s),
            duration_s=round(step.ended_s - step.started_s, 6),
            **({} if step.shared is None else {"shared": step.shared}),
            **({"ahead": True} if step.ahead else {}),
            **({} if step.batches is None else asdict(step.batches)),
        )

    async def said(self, output: str, said: SaidText) -> None:
        event = {"type": "delta", "output": output, "text": said.text}
        await self._send(event | {"begins_again": said.begins_again})

    async def speculated(self, figures: SpeculationFigures) -> None:
        self.speculation = figures

    async def grew(self, primitive: Primitive, graph: GrowingGraph) -> None:
        self.graph = graph
        await self._tell("grown", primitive, num_primitives=len(graph.primitives))

    async def repeats(self, primitive: Primitive, error: QuireError) -> None:
        await self._tell("primitive.repeated", primitive, error=error.message)

    def _since(self, time_s: float) -> float:
        return round(time_s - self._began_s, 6)

    async def _tell(self, kind: str, primitive: Primitive, **fields: Any) -> None:
        event = {
            "type": kind,
            "primitive": primitive.id,
            "op": primitive.op,
            "component": primitive.node,
            "size": primitive.size if primitive.batched else None,
        }
        await self._send(event | fields)

    async def _send(self, event: dict[str, Any]) -> None:
        await self._api.send(json.dumps(event))
