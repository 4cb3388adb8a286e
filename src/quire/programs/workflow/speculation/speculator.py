"""Runs what ``SpeculativeRuns`` chooses, in spare time, and hands over the runs that are kept.

Owns the tasks of one query's runs ahead. A run that fails is dropped: its primitive then runs as if
nothing had been supposed, and fails by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from quire.core.calls import SPARE_PRIORITY
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.speculation.ahead import SpeculativeRuns
from quire.programs.workflow.speculation.experience import Experience
from quire.programs.workflow.speculation.figures import SpeculationFigures
from quire.programs.workflow.speculation.run import Run

_log = logging.getLogger(__name__)


class SinglePrimitiveRunner(Protocol):
    """See ``scheduler.PrimitiveRunner``."""

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]: ...


@runtime_checkable
class AheadRunner(Protocol):
    """A runner that holds something for runs ahead; other runners need no more than ``run``."""

    async def run_ahead(self, run: Run) -> Mapping[str, Any]:
        """Return the outputs, computed in spare time, without reporting, sharing or changing
        anything. It may put what it holds into ``run.held``."""
        ...

    def keep(self, run: Run) -> None:
        """Give what the run holds to the query, which no longer treats it as spare work."""
        ...

    def drop(self, run: Run) -> int:
        """Free what the run holds, and return the number of tokens that a model wrote in it."""
        ...


class Speculator:
    """``runners``: by the engine's name. ``may_run``: see ``SpeculativeRuns``. ``figures``: the
    figures of the query so far."""

    def __init__(
        self,
        state: GraphState,
        experience: Experience,
        runners: Mapping[str, SinglePrimitiveRunner],
        may_run: Callable[[Primitive], bool],
    ) -> None:
        self._ahead = SpeculativeRuns(state, experience, may_run)
        self._runners = runners
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        """Of the runs that have not ended."""
        self.figures = SpeculationFigures()

    def grew(self, new: Sequence[str]) -> None:
        """Note the primitives ``new`` of the query's graph, parents before children."""
        self._ahead.grew(new)

    def review(self, group: asyncio.TaskGroup) -> None:
        """Begin and drop runs, after something has ended."""
        begin, drop = self._ahead.review()
        for run in drop:
            self._drop(run)
        for run in begin:
            run.primitive = replace(run.primitive, priority=SPARE_PRIORITY)
            self._count(num_begun=1)
            task = group.create_task(self._carry_out(run, group), name=f"{run.primitive.id} ahead")
            self._tasks[run] = task
            task.add_done_callback(partial(self._forget, run))

    async def _carry_out(self, run: Run, group: asyncio.TaskGroup) -> None:
        runner = self._runner(run)
        outputs: Mapping[str, Any] | None = None
        try:
            if run.is_kept and run.primitive.op is Op.DECODING:
                pass  # its primitive has started, and found no answer to continue from
            elif isinstance(runner, AheadRunner):
                outputs = await runner.run_ahead(run)
            else:
                outputs = await runner.run(run.primitive, run.inputs)
        except Exception:
            _log.debug("%s failed ahead", run.primitive.id, exc_info=True)
        self._ahead.ended(run, outputs)
        self.review(group)

    async def claimed(self, primitive: Primitive) -> Mapping[str, Any] | None:
        """Note that ``primitive`` starts; return its outputs if it ran ahead on exactly its inputs.

        None: it must run. An answer that is being written is reported by the primitive itself,
        which finds it in the call that has its prompt.
        """
        run, used, dropped = self._ahead.claim(primitive)
        for one in dropped:
            self._drop(one)
        self._count(num_kept=used is not None)
        if run is None:
            return None
        self._count(num_kept=1)
        run.is_kept = True
        runner = self._runner(run)
        if isinstance(runner, AheadRunner):
            runner.keep(run)
            if primitive.op is Op.DECODING:
                return None
        if run in self._tasks:
            await asyncio.wait([self._tasks[run]])
        return run.outputs

    def has_kept(self, primitive: Primitive) -> bool:
        """Whether ``primitive``, which has started, began ahead."""
        return self._ahead.has_kept(primitive)

    def learn(
        self, primitive: Primitive, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Note that ``primitive`` has ended, and learn from it."""
        self._ahead.learn(primitive, inputs, outputs)

    def close(self) -> None:
        """Drop all runs that are left: the query has ended."""
        for run in list(self._ahead.runs):
            self._drop(run)
        for task in self._tasks.values():
            task.cancel()

    def _forget(self, run: Run, _: asyncio.Task[None]) -> None:
        del self._tasks[run]

    def _drop(self, run: Run) -> None:
        if run in self._tasks:
            self._tasks[run].cancel()
        runner = self._runner(run)
        num_tokens = runner.drop(run) if isinstance(runner, AheadRunner) else 0
        self._count(num_dropped=1, num_dropped_tokens=num_tokens)

    def _runner(self, run: Run) -> SinglePrimitiveRunner:
        assert run.primitive.engine is not None, "what no engine carries out does not run ahead"
        return self._runners[run.primitive.engine]

    def _count(self, **more: int) -> None:
        self.figures += SpeculationFigures(**more)
