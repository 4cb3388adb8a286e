"""Runs the graph of a query: a primitive starts as soon as nothing is left that it waits for
(Ayo's section 5.1).

Owns the tasks of one query. Which commands of other queries share a batch is for control to decide;
it sees the depth and the number of the primitive that each serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from quire.core.errors import EngineLost, InvalidArgument, PageLost, QuireError
from quire.programs.workflow.graph import PrimitiveGraph
from quire.programs.workflow.object_store import GraphState
from quire.programs.workflow.primitives import Op, Primitive
from quire.programs.workflow.values import ValueType
from quire.programs.workflow.watching import Step, StepLog, Watcher

LOSSES = (EngineLost, PageLost)
PAUSES_S = (0.1, 0.5, 2.0, 5.0)
"""Before a primitive is carried out again. An engine that comes back does so within seconds; while
a large model loads the query fails, and its client may ask again."""


class Runner(Protocol):
    """Carries out the primitives of one engine, many at a time.

    It owns what its states hold until ``close``, which is called when the query has ended, however
    it has ended.
    """

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs by port. It may be called again with the same inputs after an engine was
        lost, and then gives what it would have given."""
        ...

    async def close(self) -> None: ...


class GraphScheduler:
    """One query. ``runners`` by the engine's name; ``watcher`` is told of every primitive.

    A primitive whose engine is lost is carried out again from its inputs, which are still stored,
    after each of ``PAUSES_S``. Tools are not: nobody knows what they have done.
    """

    def __init__(
        self,
        graph: PrimitiveGraph,
        query: Mapping[str, Any],
        runners: Mapping[str, Runner],
        now_s: Callable[[], float],
        watcher: Watcher | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.state = GraphState(graph, query)
        self._runners, self._now_s, self._sleep = runners, now_s, sleep
        self._watcher: Watcher = watcher or StepLog()

    async def run(self) -> dict[str, Any]:
        """The results of the query.

        If a primitive fails, the others are cancelled and its error is raised. ``runners`` are
        closed in any case.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._begin(self.state.start(), group)
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            for runner in self._runners.values():
                await runner.close()
        return self.state.results()

    def _begin(self, primitives: Sequence[Primitive], group: asyncio.TaskGroup) -> None:
        for primitive in primitives:
            group.create_task(self._carry_out(primitive, group), name=primitive.id)

    async def _carry_out(self, primitive: Primitive, group: asyncio.TaskGroup) -> None:
        outputs = self.state.skipped(primitive)
        if outputs is None:
            started_s = self._now_s()
            await self._watcher.began(primitive, started_s)
            outputs = await self._outputs(primitive)
            await self._watcher.ended(Step(primitive, started_s, self._now_s()))
        self._begin(self.state.finish(primitive.id, outputs), group)

    async def _outputs(self, primitive: Primitive) -> dict[str, Any]:
        inputs = self.state.inputs_of(primitive)
        if primitive.op is Op.AGGREGATE:
            return {"out": _gathered(primitive, inputs)}
        if primitive.op is Op.CONDITION:
            return {"out": _plain(inputs["text"]) == _plain(primitive.config["equals"])}
        assert primitive.engine is not None, f"{primitive.id} has no engine"
        runner = self._runners[primitive.engine]
        for pause_s in (*PAUSES_S, None):
            try:
                return dict(await runner.run(primitive, inputs))
            except QuireError as exc:
                if not _may_be_repeated(primitive, exc):
                    raise _named(primitive, exc, exc.message) from exc
                if pause_s is None:
                    text = f"its engine was lost {len(PAUSES_S) + 1} times: {exc.message}"
                    raise _named(primitive, exc, text) from exc
                await self._watcher.repeats(primitive, exc)
            await self._sleep(pause_s)
        raise AssertionError("the last pause is none")


def _may_be_repeated(primitive: Primitive, error: QuireError) -> bool:
    return isinstance(error, LOSSES) and primitive.op is not Op.TOOL


def _named(primitive: Primitive, error: QuireError, text: str) -> QuireError:
    """The same error, whose message names the component."""
    if text.startswith(f"{primitive.node}:"):
        return error
    return type(error)(f"{primitive.node}: {text}", **error.details)


def check_elements(primitive: Primitive, values: Sequence[Any]) -> None:
    """A list that does not have the elements for which the graph was made cannot be cut.

    Raises:
        InvalidArgument: it has another number.
    """
    if not primitive.batched or primitive.size is None or primitive.fan is None:
        return
    if len(values) != primitive.size * primitive.fan:
        raise InvalidArgument(
            f"{primitive.node}: gave {len(values)} elements for {primitive.size}: a batchable "
            "component must give one for each",
            param=primitive.node,
        )


def _gathered(primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
    if primitive.outputs["out"] is ValueType.DONE:
        return True
    return [element for values in inputs.values() for element in values]


def _plain(text: str) -> str:
    return text.strip().rstrip(".").casefold()


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that came first; the others follow from it or were in flight."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
