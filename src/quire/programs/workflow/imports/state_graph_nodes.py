"""The functions that run the nodes of a ``StateGraph`` that wait for those before them alone.

Each node runs at most once, or once for each input that is sent to it. It sees the updates of the
nodes before it; what it reads of others is refused when all have ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.programs.workflow.imports.graph_output import output_of
from quire.programs.workflow.imports.graph_shape import START, GraphShape
from quire.programs.workflow.imports.node_runs import Leads, NodeRuns, SentInput
from quire.programs.workflow.imports.shared_state import (
    EndedNode,
    Place,
    SentRun,
    Update,
    before_step,
    check_reads,
    joined,
    state_of,
)


@dataclass(frozen=True, slots=True)
class StateGraphNode:
    """One node of the graph. ``parents``: the node of each input of its tool."""

    shape: GraphShape
    name: str
    parents: Mapping[str, str]

    async def run(self, state: Any, **ended: EndedNode) -> EndedNode:
        """Run the node once, once for each input that was sent to it, or not at all."""
        before = {self.parents[given]: one for given, one in ended.items()}
        if self.name == START:
            return await self._begun(state)
        updates = joined(before.values())
        pulled = self._pulled(before)
        sent = [sent for one in before.values() for sent in one.sent if sent.node == self.name]
        step = max({*pulled, *(one.place[0] for one in sent)}, default=None)
        if step is None:
            return EndedNode(None, updates=updates)
        seen = before_step(updates, step)
        whole = state_of(self.shape.keys, state, seen)
        runs: list[Awaitable[EndedNode]] = []
        if pulled:
            runs.append(self._run_once((step, 0, self.name), None, state, whole, seen))
        runs += [
            self._run_once(one.place, SentInput(one.given), state, whole, seen)
            for one in sorted(sent, key=lambda one: one.place)
        ]
        made = await _all(runs)
        own = {place: found for one in made for place, found in one.updates.items()}
        return EndedNode(
            step,
            frozenset().union(*(one.goes_to for one in made)),
            tuple(sent for one in made for sent in one.sent),
            {**updates, **own},
        )

    async def _begun(self, state: Any) -> EndedNode:
        self.shape.check_input(state)
        runs = NodeRuns(self.shape, START)
        leads, _ = await runs.branched(state_of(self.shape.keys, state, {}))
        return EndedNode(0, leads.goes_to, _sent((0, 0, START), leads))

    def _pulled(self, before: Mapping[str, EndedNode]) -> set[int]:
        """Return the steps in which edges, branches and commands lead here. There is at most one,
        or the graph runs in supersteps."""
        steps = {name: one.step for name, one in before.items() if one.step is not None}
        found = {step + 1 for name, step in steps.items() if self.name in before[name].goes_to}
        for starts, end in self.shape.joins:
            if end == self.name and starts <= steps.keys():
                found.add(max(steps[name] for name in starts) + 1)
        return found

    async def _run_once(
        self,
        place: Place,
        sent: SentInput | None,
        state: Any,
        whole: Mapping[str, Any],
        seen: Mapping[Place, Update],
    ) -> EndedNode:
        runs = NodeRuns(self.shape, self.name)
        values, leads, read = await runs.run(whole, sent)
        made = Update(place, self.name, frozenset(seen), values)
        behind: dict[str, Any] = {}
        if self.shape.branches[self.name]:
            updates = dict(sorted({**seen, place: made}.items()))
            behind = state_of(self.shape.keys, state, updates)
        branched, read_there = await runs.branched(behind)
        leads += branched
        made = dataclasses.replace(made, read=frozenset(read | read_there))
        return EndedNode(place[0], leads.goes_to, _sent(place, leads), {place: made})


def finishing(shape: GraphShape) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return the function of the tool that makes the graph's output."""

    async def finish(state: Any, **ended: EndedNode) -> dict[str, Any]:
        """Return the graph's output as JSON values."""
        updates = joined(ended.values())
        check_reads(updates)
        return output_of(shape, state_of(shape.keys, state, updates))

    return finish


async def _all(runs: list[Awaitable[EndedNode]]) -> list[EndedNode]:
    """Wait for all runs; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(one) for one in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for one in tasks:
            one.cancel()


def _sent(place: Place, leads: Leads) -> tuple[SentRun, ...]:
    return tuple(
        SentRun((place[0] + 1, 1, place, number), node, given)
        for number, (node, given) in enumerate(leads.sent)
    )
