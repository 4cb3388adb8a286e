"""Runs the graph of a query: starts a primitive as soon as all that it waits for has ended.

See Ayo's section 5.1. Owns the tasks of one query. Control decides which commands of several
queries share a batch; it sees the depth and the number of the primitive that each serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from quire.core.errors import EngineLost, InvalidArgument, PageLost, QuireError
from quire.programs.api.encode import EncoderBatches
from quire.programs.workflow.components.building import MAX_GROWN_PRIMITIVES
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.execution.recording import NO_RECORD, OutcomeUnknown, QueryRecord
from quire.programs.workflow.execution.watching import PrimitiveStep, StepLog, Watcher
from quire.programs.workflow.graphs.control_flow import decided
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.growing_graph import GrowingGraph
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import AT_ONCE, Op, Primitive
from quire.programs.workflow.graphs.values import Ref, plain
from quire.programs.workflow.speculation import Experience, Speculator
from quire.programs.workflow.template.growth import Growth

LOSSES = (EngineLost, PageLost)
PAUSES_S = (0.1, 0.5, 2.0, 5.0)
"""The pauses before a primitive runs again. Most engines come back within seconds; if a large model
must load first, the query fails and its client may ask again."""
MAX_WAITED_S = 30.0
"""A primitive whose tries have together waited so long for an answer that did not come does not run
again: an engine that hangs, such as a search server, would keep the query for all of its tries."""
CLOSE_S = 2.0
"""The most seconds that a query which has ended waits until an engine has freed what it held. What
takes longer goes on alone."""


class PrimitiveRunner(Protocol):
    """Runs the primitives of one engine, many at a time.

    It owns the resources of its states until ``close``, which is called when the query has ended in
    any way.
    """

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by port. After the loss of an engine it may be called again with the
        same inputs, and must then give the same outputs."""
        ...

    async def close(self) -> None: ...


class GrownGraph(NamedTuple):
    """The graph that replaces a growth. ``values``: the query inputs of ``graph`` by name;
    ``passed``: outputs of the growth that are such inputs. ``grower``: the grower of the growths in
    ``graph``. ``growth``: what its function has returned; None if no function was called."""

    graph: PrimitiveGraph
    passed: Mapping[str, Ref]
    values: Mapping[str, Any]
    grower: Grower
    growth: Growth | None


class Grower(Protocol):
    """Finds out what growths become."""

    async def grow(
        self, primitive: Primitive, inputs: Mapping[str, Any], again: Growth | None = None
    ) -> Mapping[str, Any] | GrownGraph:
        """Return the outputs of the growth by name, or the graph that gives them. ``again``: what
        its function returned before (``GrownGraph.growth``); it is then not called."""
        ...


class GraphScheduler:
    """Runs one query. ``runners``: by the engine's name; ``watcher`` receives every primitive.

    ``grower``: the grower of the growths in ``graph``; ``follow`` receives the query's graph each
    time it has grown. ``record``: what is kept of the query. ``shared``: see
    ``Sharing.how``. ``experience``: the basis of suppositions; None: nothing runs ahead.
    ``batches``: the batches of encoders, by the primitive's id.

    A primitive whose engine is lost runs again from its inputs, which are still stored, after each
    of ``PAUSES_S`` and until ``MAX_WAITED_S``. Tools do not: it is not known what they have done.
    """

    def __init__(
        self,
        graph: PrimitiveGraph,
        query: Mapping[str, Any],
        runners: Mapping[str, PrimitiveRunner],
        now_s: Callable[[], float],
        watcher: Watcher | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        grower: Grower | None = None,
        follow: Callable[[GrowingGraph], object] | None = None,
        seconds: Callable[[Primitive], float] = lambda primitive: 0.0,
        record: QueryRecord = NO_RECORD,
        shared: Mapping[str, str] = MappingProxyType({}),
        experience: Experience | None = None,
        batches: Mapping[str, EncoderBatches] = MappingProxyType({}),
    ) -> None:
        self.state = GraphState(graph, query)
        self.speculator: Speculator | None = None
        if experience is not None:
            self.speculator = Speculator(self.state, experience, runners, record.carries_out)
        self._record, self._shared, self._batches = record, shared, batches
        record.follow(self.state.graph, graph.order)
        self._runners, self._now_s, self._sleep = runners, now_s, sleep
        self._watcher: Watcher = watcher or StepLog()
        self._grower, self._follow, self._seconds = grower, follow, seconds
        self._growers: dict[str, Grower] = {}
        """The growers of later growths, by what stands before their ids."""

    async def run(self) -> dict[str, Any]:
        """Run the query and return its results.

        If a primitive fails, the others are cancelled and its error is raised. ``runners`` are
        closed in any case.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._begin(self.state.start(), group)
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            await self._close()
        if self.speculator is not None:
            await self._watcher.speculated(self.speculator.figures)
        return await plain(self.state.results())

    async def _close(self) -> None:
        for runner in self._runners.values():
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await runner.close()

    async def _begin(self, ready: list[Primitive], group: asyncio.TaskGroup) -> None:
        """Start primitives; those without work for an engine end here.

        So the primitives that they make ready reach their engine before those nearer to a result:
        an idle engine takes the first request.
        """
        waiting = list[Primitive]()
        while ready:
            primitive = ready.pop(0)
            if primitive.op in AT_ONCE:
                ready = await self._ended(primitive) + ready
            else:
                waiting.append(primitive)
        for primitive in sorted(waiting, key=lambda one: -one.depth):
            group.create_task(self._carry_out(primitive, group), name=primitive.id)
        if self.speculator is not None:
            if self.state.num_left:
                self.speculator.review(group)
            else:
                self.speculator.close()

    async def _carry_out(self, primitive: Primitive, group: asyncio.TaskGroup) -> None:
        await self._begin(await self._ended(primitive), group)

    async def _ended(self, primitive: Primitive) -> list[Primitive]:
        """Run ``primitive`` and return the primitives that may start then."""
        known = self._record.known(primitive, self.state)
        if known is not None:
            await self._tell_known(primitive, known)
        outputs: Mapping[str, Any] | GrownGraph | None = known
        if outputs is None:
            outputs = self.state.skipped(primitive)
        if outputs is None:
            started_s = self._now_s()
            await self._watcher.began(primitive, started_s)
            is_growth = primitive.op is Op.GROWTH
            outputs = await (self._become if is_growth else self._recorded)(primitive)
            shared, batches = self._shared.get(primitive.id), self._batches.get(primitive.id)
            ahead = self.speculator is not None and self.speculator.has_kept(primitive)
            await self._watcher.ended(
                PrimitiveStep(primitive, started_s, self._now_s(), shared, ahead, batches)
            )
            if self.speculator is not None and not isinstance(outputs, GrownGraph):
                self.speculator.learn(primitive, self.state.inputs_of(primitive), outputs)
        if isinstance(outputs, GrownGraph):
            return await self._grow(primitive, outputs)
        return self.state.finish(primitive.id, outputs)

    async def _tell_known(self, primitive: Primitive, outputs: Mapping[str, Any]) -> None:
        """Send the kept text of a result to a watcher that reads answers."""
        for name, ref in self.state.graph.results.items():
            is_text = ref.primitive == primitive.id and isinstance(outputs.get(ref.port), str)
            if is_text and self._watcher.reads_text:
                await self._watcher.said(name, SaidText(outputs[ref.port]))

    async def _become(self, growth: Primitive) -> Mapping[str, Any] | GrownGraph:
        grower = self._growers.get(growth.id.rpartition("/")[0], self._grower)
        assert grower is not None, f"{growth.id} is a growth, and nobody knows what it becomes"
        inputs, again = self.state.inputs_of(growth), self._record.growth(growth)
        try:
            outputs = await grower.grow(growth, inputs, again)
            if not isinstance(outputs, GrownGraph):
                await self._record.ended(growth, outputs)
            return outputs
        except QuireError as exc:
            raise _named(growth, exc, exc.message) from exc

    async def _grow(self, growth: Primitive, grown: GrownGraph) -> list[Primitive]:
        """Put the graph of a growth in its place; return the primitives that may start now."""
        num = len(self.state.graph.primitives) + len(grown.graph.primitives)
        if num > MAX_GROWN_PRIMITIVES:
            raise InvalidArgument(
                f"{growth.node}: with its growth the query has {num} primitives; at most "
                f"{MAX_GROWN_PRIMITIVES} are allowed: let it grow less, or ask several queries",
                param=growth.node,
            )
        if grown.growth is not None and self._record.growth(growth) is None:
            await self._record.grew(growth, grown.growth, num)
        graft, ready = self.state.grow(
            growth.id, grown.graph, grown.passed, grown.values, self._seconds
        )
        self._growers[graft.scope] = grown.grower
        self._record.follow(self.state.graph, graft.new, instead_of=growth)
        if self.speculator is not None:
            self.speculator.grew(graft.new)
        if self._follow is not None:
            self._follow(self.state.graph)
        await self._watcher.grew(growth, self.state.graph)
        return ready

    async def _recorded(self, primitive: Primitive) -> Mapping[str, Any]:
        await self._record.begins(primitive)
        try:
            outputs = await self._outputs(primitive)
        except (OutcomeUnknown, *LOSSES):  # a tool may have acted
            raise
        except Exception:
            await self._record.failed(primitive)
            raise
        await self._record.ended(primitive, outputs)
        return outputs

    async def _outputs(self, primitive: Primitive) -> Mapping[str, Any]:
        inputs = self.state.inputs_of(primitive)
        outputs: Mapping[str, Any] | None = decided(primitive, inputs)
        if outputs is None and self.speculator is not None:
            outputs = await self.speculator.claimed(primitive)
        if outputs is not None:
            return outputs
        assert primitive.engine is not None, f"{primitive.id} has no engine"
        runner = self._runners[primitive.engine]
        waited_s = 0.0
        for num_tries, pause_s in enumerate((*PAUSES_S, None), 1):
            try:
                return dict(await runner.run(primitive, inputs))
            except QuireError as exc:
                if not _may_be_repeated(primitive, exc):
                    raise _named(primitive, exc, exc.message) from exc
                waited_s += exc.details.get("waited_s", 0.0)
                if pause_s is None or waited_s >= MAX_WAITED_S:
                    tries = "once" if num_tries == 1 else f"{num_tries} times"
                    raise _named(primitive, exc, f"was tried {tries}: {exc.message}") from exc
                await self._watcher.repeats(primitive, exc)
            await self._sleep(pause_s)
        raise AssertionError("the last pause is none")


def _may_be_repeated(primitive: Primitive, error: QuireError) -> bool:
    return isinstance(error, LOSSES) and primitive.op is not Op.TOOL


def _named(primitive: Primitive, error: QuireError, text: str) -> QuireError:
    """Return the same error with a message that names the component."""
    if text.startswith(f"{primitive.node}:"):
        return error
    return type(error)(f"{primitive.node}: {text}", **error.details)


def check_elements(primitive: Primitive, values: Sequence[Any]) -> None:
    """Refuse a list whose number of elements is not the one that the graph was made for.

    Raises:
        InvalidArgument: the list has another number of elements.
    """
    if not primitive.batched or primitive.size is None or primitive.fan is None:
        return
    if len(values) != primitive.size * primitive.fan:
        raise InvalidArgument(
            f"{primitive.node}: gave {len(values)} elements for {primitive.size}: a batchable "
            "component must give one for each",
            param=primitive.node,
        )


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that came first; the others follow from it or were in flight."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
