"""A ``StateGraph`` in LangGraph's supersteps: all nodes of a step end before the next begins.

This is for graphs with a loop, or with a node that may run in several steps: what a node sees then
depends on the step. A growth makes the nodes of a step components of the query, and itself the
component after them. The rules are those of LangGraph's ``pregel/_algo.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import MAX_GROWN_PRIMITIVES
from quire.programs.workflow.imports.graph_output import output_of
from quire.programs.workflow.imports.graph_shape import END, START, GraphShape, Join
from quire.programs.workflow.imports.node_runs import Leads, NodeRuns, SentInput
from quire.programs.workflow.imports.shared_state import Place, Update, state_of, updated
from quire.programs.workflow.template.growth import Growth
from quire.programs.workflow.template.node import Node

DEFAULT_RECURSION_LIMIT = 10_007
"""LangGraph's, of a graph whose configuration has none."""


@dataclass(frozen=True, slots=True)
class StepRun:
    """A run of ``node`` in step ``number``. ``sent``: what it gets in place of the state."""

    node: str
    number: int
    place: Place
    state: Mapping[str, Any]
    sent: SentInput | None = None


@dataclass(frozen=True, slots=True)
class EndedRun:
    update: Update
    leads: Leads


@dataclass(frozen=True, slots=True)
class Superstep:
    """The state behind a step, and what is left to run. ``pulled``: the nodes that run on the state
    next. ``sent``: those that run on an input of their own. ``arrived``: the nodes of each join
    that have ended since it last led on. ``deferred``: nodes that wait until nothing else leads
    anywhere. ``num_primitives``: of the query so far, a run of a node or a growth each."""

    number: int
    state: Mapping[str, Any]
    pulled: frozenset[str]
    sent: tuple[tuple[str, Any], ...]
    arrived: Mapping[Join, frozenset[str]]
    deferred: frozenset[str]
    num_primitives: int

    def runs(self) -> list[StepRun]:
        """Return the runs of the next step: those on the state by name, then those that were
        sent."""
        number = self.number + 1
        pulled = [StepRun(one, number, (number, 0, one), self.state) for one in sorted(self.pulled)]
        return pulled + [
            StepRun(node, number, (number, 1, place), self.state, SentInput(given))
            for place, (node, given) in enumerate(self.sent)
        ]


class Supersteps:
    """The functions of the growth and of the tools that run a graph. ``called``: makes the name of
    a node's tool.

    A query does at most as many steps as LangGraph: one less than its recursion limit.
    """

    def __init__(self, shape: GraphShape, called: Callable[[str], str]) -> None:
        self._shape, self._called = shape, called
        config = shape.config or {}
        self._limit: int = config.get("recursion_limit", DEFAULT_RECURSION_LIMIT)
        self._deferred = frozenset(
            name for name, spec in shape.specs.items() if getattr(spec, "defer", False)
        )

    def growth(self, taken: Iterable[str]) -> Node:
        """Return the component that leads on from the inputs ``taken``."""
        function = "begin" if "state" in taken else "lead_on"
        config = {"function": function, "max_rounds": self._limit + 1}
        inputs = dict.fromkeys(taken, "object")
        return Node("growth", inputs, {"result": "object"}, None, config, name="supersteps")

    def functions(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Return the functions of the engine of the growth."""
        return {"begin": self.begin, "lead_on": self.lead_on}

    async def begin(self, state: Any) -> dict[str, Any] | Growth:
        """Return the nodes that START leads to, or the output."""
        self._shape.check_input(state)
        whole = state_of(self._shape.keys, state, {})
        leads, _ = await NodeRuns(self._shape, START, anywhere=True).branched(
            self._with_managed(whole, 0)
        )
        begun = EndedRun(Update((0, 0, START), START, frozenset(), ()), leads)
        before = Superstep(-1, whole, frozenset(), (), {}, frozenset(), -1)
        return self._grown(self._behind(before, [begun]))

    async def lead_on(self, superstep: Superstep, **ended: EndedRun) -> dict[str, Any] | Growth:
        """Return the nodes of the step that follows the runs that have ``ended``, or the output."""
        return self._grown(self._behind(superstep, list(ended.values())))

    async def run(self, **given: StepRun) -> EndedRun:
        """Run a node."""
        (run,) = given.values()
        runs = NodeRuns(self._shape, run.node, anywhere=True)
        values, leads, _ = await runs.run(self._with_managed(run.state, run.number), run.sent)
        update = Update(run.place, run.node, frozenset(), values)
        behind = run.state
        if self._shape.branches[run.node]:
            behind = updated(self._shape.keys, run.state, [update])
        branched, _ = await runs.branched(self._with_managed(behind, run.number))
        return EndedRun(update, leads + branched)

    def _with_managed(self, state: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        left = self._limit - number
        values = {"RemainingStepsManager": left, "IsLastStepManager": left == 1}
        return {**state, **{key: values[kind] for key, kind in self._shape.managed.items()}}

    # -- from step to step ---------------------------------------------------------------------

    def _behind(self, before: Superstep, ended: list[EndedRun]) -> Superstep:
        """Return what is there when all runs of the step behind ``before`` have ended."""
        ended = sorted(ended, key=lambda one: one.update.place)
        state = updated(self._shape.keys, before.state, [one.update for one in ended])
        arrived = {
            join: self._arrived(join, before, {one.update.node for one in ended})
            for join in self._shape.joins
        }
        full = {end for (starts, end), found in arrived.items() if found == starts}
        reached = frozenset().union(*(one.leads.goes_to for one in ended)) - {END}
        deferred = (before.deferred - before.pulled) | (reached & self._deferred)
        pulled = (reached | full) - self._deferred - {END}
        sent = tuple(sent for one in ended for sent in one.leads.sent)
        if not pulled:  # what was sent does not count: deferred nodes run beside it
            pulled = deferred | (full & self._deferred)
        num_primitives = before.num_primitives + len(ended) + 1
        return Superstep(before.number + 1, state, pulled, sent, arrived, deferred, num_primitives)

    def _arrived(self, join: Join, before: Superstep, ended: set[str]) -> frozenset[str]:
        starts, end = join
        found = before.arrived.get(join, frozenset())
        if found == starts and end in before.pulled:
            found = frozenset()
        return found | (starts & ended)

    def _grown(self, superstep: Superstep) -> dict[str, Any] | Growth:
        runs = superstep.runs()
        if superstep.number + 1 > self._limit:
            raise InvalidArgument(
                f"the graph has done {superstep.number} steps, and its recursion limit is "
                f"{self._limit}: let it end earlier, or raise the limit with "
                'with_config({"recursion_limit": ...}) of the compiled graph',
                param="recursion_limit",
            )
        if superstep.num_primitives + len(runs) + 1 > MAX_GROWN_PRIMITIVES:
            num_runs = superstep.num_primitives - superstep.number - 1
            raise InvalidArgument(
                f"the graph has done {superstep.number} steps, in which its nodes ran {num_runs} "
                f"times, and a query has at most {MAX_GROWN_PRIMITIVES} steps and runs together: "
                "let it end earlier; a recursion_limit ends a loop that may have no end sooner",
                param="recursion_limit",
            )
        if not runs:
            return output_of(self._shape, superstep.state)
        values: dict[str, Any] = {f"run_{place}": run for place, run in enumerate(runs)}
        nodes = [
            Node(
                "tool",
                {f"run_{place}": "object"},
                {f"ended_{place}": "object"},
                config={"function": self._called(run.node)},
                name=self._called(run.node) + (f"_{place}" if run.sent else ""),
            )
            for place, run in enumerate(runs)
        ]
        taken = ("superstep", *(f"ended_{place}" for place in range(len(runs))))
        return Growth([*nodes, self.growth(taken)], {**values, "superstep": superstep})
