"""``SpeculativeRuns``: the primitives of a query that may run ahead, and their supposed inputs.

To run ahead is to run before it is known that the result is needed. Owns the suppositions and the
runs. A run is kept if its primitive, when it starts, has the inputs of the run: so the answer of a
query does not depend on suppositions. Does no I/O and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from quire.programs.workflow.graphs.control_flow import decided
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Guess, Primitive
from quire.programs.workflow.graphs.values import empty
from quire.programs.workflow.speculation.early import EarlyScores
from quire.programs.workflow.speculation.experience import Experience
from quire.programs.workflow.speculation.guesses import branches_of, share_right
from quire.programs.workflow.speculation.run import Run
from quire.programs.workflow.speculation.world import World

MAX_RUNS = 64
"""The most runs of one query that have not been kept or dropped."""
MAX_WORLDS = 4
"""The most combinations of conditions that are tried if conditions may be either true or false."""


class Review(NamedTuple):
    begin: list[Run]
    drop: list[Run]


class ClaimedRuns(NamedTuple):
    """``kept``: the run with the inputs of the primitive. ``used``: a run that has scored texts
    early. ``dropped``: the others."""

    kept: Run | None
    used: Run | None
    dropped: list[Run]


class SpeculativeRuns:
    """See the module docstring. ``review`` returns the runs to begin and to drop; call it again
    when a primitive or a run (``ended``) has ended. Call ``claim`` when a primitive starts,
    ``learn`` when it has ended, and ``grew`` when the query's graph has grown. ``may_run``: whether
    a primitive runs at all; one whose outputs are kept from an earlier attempt at the query does
    not.

    What a call costs does not grow with the primitives that have ended."""

    def __init__(
        self,
        state: GraphState,
        experience: Experience,
        may_run: Callable[[Primitive], bool] = lambda primitive: True,
    ) -> None:
        self._state, self._experience, self._may_run = state, experience, may_run
        self._early = EarlyScores(state, experience)
        self._runs: dict[str, list[Run]] = {}
        self._unended: list[str] = []
        """The primitives that may run ahead or be supposed, parents before children; some of them
        may have ended."""
        self._kept: dict[str, Run] = {}
        """The kept runs by primitive, until the primitive has ended."""
        self._scored = set[str]()
        """The primitives that have found texts scored early, until they have ended."""
        self._add(state.graph.at_first)

    @property
    def runs(self) -> Iterator[Run]:
        """The runs that are neither kept nor dropped."""
        for runs in self._runs.values():
            yield from runs
        yield from self._early.open_runs

    # -- events ------------------------------------------------------------------------------------

    def grew(self, new: Sequence[str]) -> None:
        """Note the primitives ``new`` of the query's graph, parents before children. Everything
        else that has not ended waits for them or has nothing to do with them."""
        self._add(new)
        self._early.grew(new)

    def _add(self, new: Sequence[str]) -> None:
        primitives = self._state.graph.primitives
        marked = [one for one in new if primitives[one].ahead or primitives[one].guess]
        self._unended = [*marked, *self._unended]

    def ended(self, run: Run, outputs: Mapping[str, Any] | None) -> None:
        """Note the end of ``run``. ``outputs``: None if it failed; its primitive then runs anew."""
        run.outputs, run.has_failed = outputs, outputs is None

    def _fitting(self, primitive: Primitive) -> Run | None:
        """Return the run that has exactly the inputs of ``primitive``, whose parents have ended."""
        runs = self._runs.get(primitive.id)
        if not runs:
            return None
        inputs = self._state.inputs_of(primitive)
        return next((r for r in runs if not r.has_failed and r.inputs == inputs), None)

    def claim(self, primitive: Primitive) -> ClaimedRuns:
        """Note that ``primitive`` starts; return its runs that are kept, used and dropped."""
        kept = self._fitting(primitive)
        runs = self._runs.pop(primitive.id, [])
        if kept is not None:
            self._kept[primitive.id] = kept
        early = self._early.claim(primitive)
        used = early if early is not None and early.outputs is not None else None
        if used is not None:
            self._scored.add(primitive.id)
        if early is not None and used is None:
            runs.append(early)
        return ClaimedRuns(kept, used, [run for run in runs if run is not kept])

    def has_kept(self, primitive: Primitive) -> bool:
        """Whether ``primitive``, which has started, has kept or used a run that has not failed."""
        kept = self._kept.get(primitive.id)
        is_kept = kept is not None and not kept.has_failed
        return is_kept or primitive.id in self._scored

    def learn(
        self, primitive: Primitive, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Note that ``primitive`` has ended, and learn whether its supposition was right."""
        self._kept.pop(primitive.id, None)
        self._scored.discard(primitive.id)
        right = share_right(primitive, inputs, outputs) if primitive.guess else None
        if primitive.guess is Guess.FIRST:
            self._early.learn(primitive, inputs["texts"], outputs["out"])
        if right is not None:
            self._experience.note(primitive.node, right)

    # -- choice of runs ----------------------------------------------------------------------------

    def review(self) -> Review:
        wanted: list[Run] = []
        marked = self._marked()
        running = [one for one in marked if self._may_run(one)]
        begun = self._early.begin(running)
        for branches in self._branches(marked):
            world = World(self._state, self._experience, self._early, branches)
            for primitive in running:
                world.put(primitive, self._outputs(primitive, world, wanted, begun))
        kept = {id(run) for run in wanted}
        runs = [run for runs in self._runs.values() for run in runs]
        dropped = [run for run in runs if id(run) not in kept]
        for run in dropped:
            self._remove(run)
        return Review(begun, [*dropped, *self._early.end(marked)])

    def _remove(self, run: Run) -> None:
        one = run.primitive.id
        self._runs[one].remove(run)
        if not self._runs[one]:
            del self._runs[one]

    def _marked(self) -> list[Primitive]:
        """Return the primitives that may run ahead or be supposed and have not ended, parents
        before children."""
        self._unended = [one for one in self._unended if not self._state.has_ended(one)]
        return [self._state.graph.primitives[one] for one in self._unended]

    def _branches(self, marked: Sequence[Primitive]) -> Iterator[Mapping[str, bool]]:
        """Yield supposed values of all open conditions: first all as they mostly are, then with one
        after the other inverted."""
        open_ones = {
            one.id: branches_of(one, self._experience)
            for one in marked
            if one.guess is Guess.BRANCH
        }
        likely = {one: values[0] for one, values in open_ones.items() if values}
        yield likely
        doubtful = [one for one, values in open_ones.items() if len(values) > 1]
        for one in doubtful[: MAX_WORLDS - 1]:
            yield likely | {one: not likely[one]}

    def _outputs(
        self, primitive: Primitive, world: World, wanted: list[Run], begun: list[Run]
    ) -> Mapping[str, Any] | None:
        """Return the outputs of ``primitive`` for its inputs in ``world``, or None if it has not
        run on them."""
        when = (True,) if primitive.when is None else world.value(primitive.when)
        if when is not None and not when[0]:
            return {port: empty(kind) for port, kind in primitive.outputs.items()}
        has_ended = self._state.has_ended
        if all(map(has_ended, primitive.parents)):  # it starts, or has started
            wanted += self._runs.get(primitive.id, ())
            kept = self._kept.get(primitive.id) or self._fitting(primitive)
            return None if kept is None else kept.outputs
        if when is None or not primitive.ahead or not all(map(has_ended, primitive.after)):
            return None
        inputs = world.inputs(primitive)
        if inputs is None:
            return None
        outputs = decided(primitive, inputs)
        if outputs is not None:
            return outputs
        run = self._run(primitive, inputs)
        if run is None and world.is_supposed(primitive):  # else it starts in a moment
            run = self._new_run(primitive, inputs, begun)
        if run is None:
            return None
        wanted.append(run)
        return run.outputs

    def _run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Run | None:
        runs = self._runs.get(primitive.id, ())
        return next((run for run in runs if run.inputs == inputs), None)

    def _new_run(
        self, primitive: Primitive, inputs: Mapping[str, Any], begun: list[Run]
    ) -> Run | None:
        if sum(map(len, self._runs.values())) >= MAX_RUNS:
            return None
        run = Run(primitive, inputs)
        self._runs.setdefault(primitive.id, []).append(run)
        begun.append(run)
        return run
