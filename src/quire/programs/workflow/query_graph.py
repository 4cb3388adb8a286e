"""``Graph``: the graph of one query, as built (p-graph) and as it will run (e-graph).

Owns what determines the shape of a graph: queries of the same shape share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgspec

from quire.core.errors import QuireError
from quire.programs.api import Api
from quire.programs.api.encode import EncoderBatches
from quire.programs.workflow.drawing import drawing
from quire.programs.workflow.durable import (
    Journal,
    KeptRecord,
    QueryPlanned,
    digests_of_graph,
    digests_of_template,
    stored,
)
from quire.programs.workflow.engines.durations import seconds_alone
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.execution.growing import TemplateGrower
from quire.programs.workflow.execution.recording import NO_RECORD, QueryRecord
from quire.programs.workflow.execution.scheduler import GraphScheduler, PrimitiveRunner
from quire.programs.workflow.execution.watching import PrimitiveStep, Watcher
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.optimizing.construction import (
    NodeConfig,
    checked_query,
    measured,
    p_graph,
)
from quire.programs.workflow.optimizing.fixpoint import optimized
from quire.programs.workflow.optimizing.graph_cache import GraphCache
from quire.programs.workflow.passes import Note, OptPass, read_passes
from quire.programs.workflow.runners import (
    StreamedAnswers,
    check_encoders,
    check_search,
    check_tools,
    runner_of,
)
from quire.programs.workflow.sharing import Sharing
from quire.programs.workflow.template.app import App

NO_CONFIG: NodeConfig = {}


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
    config: NodeConfig
    passes: OptPass
    cache: GraphCache | None

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
        passes = read_passes(passes) or app.passes
        checked = checked_query(app, query)
        configured = app.configured(config)
        sizes = measured(app, checked, configured)
        key = _key(app, configured, sizes, passes)
        found = None if cache is None else cache.find(key)
        if found is None:
            found = optimized(p_graph(app, configured, sizes), app.profiles, passes)
            if cache is not None:
                cache.keep(key, found)
        return cls(app, checked, sizes, *found, configured, passes, cache)

    @property
    def engines(self) -> list[Engine]:
        """The engines that its primitives need, and those that it may need once it has grown."""
        may_grow = any(one.op is Op.GROWTH for one in self.e_graph.primitives.values())
        used = {one.engine for one in self.e_graph.primitives.values()}
        named = self.app.used_engines if may_grow else self.app.engines.values()
        return [one for one in named if may_grow or one.name in used]

    async def schedule(
        self, api: Api, watcher: Watcher | None = None, journal: Journal | None = None
    ) -> dict[str, Any]:
        """Run the e-graph with the node's engines and return the results by name. ``watcher``
        receives every primitive, and the text of the results that models write. ``journal``: what
        is kept of the query, which continues from there."""
        await check_encoders(api, self.engines, self.app.nodes)
        await check_search(api, self.engines)
        await self._recall(api)
        record = NO_RECORD
        if journal is not None:
            record = await self._record(api, journal)
            if watcher is not None and journal.num_kept:
                await watcher.resumed(journal.num_kept, journal.num_primitives)
        streamed, sharing = self._streamed(watcher), Sharing(api)
        batches: dict[str, EncoderBatches] = {}
        runners = await self._runners(api, streamed, sharing, batches)
        scheduler = GraphScheduler(
            self.e_graph,
            self.query,
            runners,
            api.monotonic,
            watcher,
            api.sleep,
            TemplateGrower(self.app, self.config, self.passes, self.cache),
            None if streamed is None else streamed.follow,
            partial(seconds_alone, profiles=self.app.profiles),
            record,
            sharing.how,
            self.app.experience if self.passes.speculates else None,
            batches,
        )
        try:
            results = await scheduler.run()
        finally:
            await self._note(api, scheduler)
        if journal is not None:
            kinds = self.app.results
            content = stored(self.app.name, kinds, results)
            await journal.finish(content, len(scheduler.state.graph.primitives))
        return results

    async def _runners(
        self,
        api: Api,
        streamed: StreamedAnswers | None,
        sharing: Sharing,
        batches: dict[str, EncoderBatches],
    ) -> dict[str, PrimitiveRunner]:
        """Make the runners of the engines, by name; close all of them if one is refused."""
        primitives = list(self.e_graph.primitives.values())
        runners: dict[str, PrimitiveRunner] = {}
        try:
            for engine in self.engines:
                if engine.kind != "growth":
                    runners[engine.name] = runner_of(
                        engine,
                        api,
                        primitives,
                        streamed,
                        sharing,
                        batches,
                        self.app.function_threads,
                    )
            await check_tools(self.engines, runners, primitives)
        except BaseException:
            for runner in runners.values():
                await runner.close()
            raise
        return runners

    async def _recall(self, api: Api) -> None:
        """Fetch what the node has kept about earlier queries of the application."""
        if self.passes.speculates and self.app.experience.is_new:
            seen = await api.issuer.ask("speculation.recall", **self._whose)
            self.app.experience.recall(seen)

    @property
    def _whose(self) -> dict[str, str]:
        template = digests_of_template(self.app)["template"]
        return {"application": self.app.name, "template": template}

    async def _note(self, api: Api, scheduler: GraphScheduler) -> None:
        """Report to the node what ran ahead and what was learnt, however the query has ended."""
        if scheduler.speculator is None:
            return
        with suppress(QuireError):  # the program may have ended
            if scheduler.speculator.figures.num_begun:
                figures = asdict(scheduler.speculator.figures)
                await api.issuer.ask("speculation.note", **figures)
            if seen := self.app.experience.seen():
                await api.issuer.ask("speculation.learn", **self._whose, seen=seen)

    async def _record(self, api: Api, journal: Journal) -> QueryRecord:
        """Make the record of a query that continues from ``journal``.

        Raises:
            AlreadyExists: the query was asked before with another graph or other models.
            InvalidArgument: it is not known whether one of its tools has run.
        """
        digests = await digests_of_graph(api, self.e_graph, self.engines)
        if journal.planned is None:
            await journal.add(QueryPlanned(**digests, num_primitives=len(self.e_graph.primitives)))
        journal.check(digests)
        journal.check_interrupted()
        return KeptRecord(journal)

    def _streamed(self, watcher: Watcher | None) -> StreamedAnswers | None:
        if watcher is None or not watcher.reads_text:
            return None
        streamed = StreamedAnswers(watcher)
        streamed.follow(self.e_graph)
        return streamed

    def explain(self, steps: Sequence[PrimitiveStep] = ()) -> str:
        """Draw the template, the p-graph and the e-graph as SVG.

        It shows what each pass did, or why it did nothing, and the time of each primitive by its
        engine's profile. ``steps``: the steps of a ``StepLog``, whose measured times are shown too.
        """
        return drawing(self.app, self.p_graph, self.e_graph, self.notes, steps)


def _key(app: App, config: NodeConfig, sizes: Mapping[str, int], passes: OptPass) -> object:
    profiles = tuple(app.profiles.items())
    shape = msgspec.json.encode([config, sizes], order="sorted")
    return (app, app.version, shape, passes.passes, profiles)
