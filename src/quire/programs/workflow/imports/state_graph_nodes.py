"""The functions that run the nodes of a ``StateGraph``, and what they answer to.

A run of a node shows it the state, takes its update, and asks its branches and commands where it
leads to. What LangGraph would answer differently is refused by name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.imports.shared_state import (
    EndedNode,
    Key,
    Place,
    SentRun,
    Update,
    before_step,
    check_reads,
    joined,
    state_of,
)
from quire.programs.workflow.imports.shown_state import ShownState

START, END = "__start__", "__end__"
_OF_THE_RUN = ("langgraph.types", "langgraph.config", "langgraph.runtime")
"""Modules whose functions ask a run of LangGraph, which is not there here."""


@dataclass(frozen=True, slots=True)
class Branch:
    name: str
    path: Any
    ends: Mapping[Any, str]
    schema: Any
    """What its path function sees of the state."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """A graph as it was read. ``specs``: its nodes. ``schemas``: the keys of each schema.
    ``commands``: where the commands of each node may lead. ``config``: that of the compiled graph.
    """

    specs: Mapping[str, Any]
    keys: Mapping[str, Key]
    schemas: Mapping[Any, frozenset[str]]
    input_schema: Any
    output_schema: Any
    edges: Mapping[str, frozenset[str]]
    joins: frozenset[tuple[frozenset[str], str]]
    branches: Mapping[str, list[Branch]]
    commands: Mapping[str, frozenset[str]]
    config: Any

    def targets(self, one: str) -> frozenset[str]:
        """Return all that an edge, a branch or a command of ``one`` may lead to."""
        ends = {end for branch in self.branches[one] for end in branch.ends.values()}
        return self.edges[one] | ends | self.commands.get(one, frozenset())

    def known(self, schema: Any) -> frozenset[str]:
        return self.schemas.get(schema, frozenset(self.keys))

    def shown(self, schema: Any, state: Mapping[str, Any], where: str) -> tuple[Any, ShownState]:
        """Return the state in the form of ``schema``, and the dict that notes what it reads."""
        known = self.known(schema)
        shown = ShownState({name: one for name, one in state.items() if name in known}, known)
        if schema is None or (inspect.isclass(schema) and issubclass(schema, dict)):
            return shown, shown
        try:
            return schema(**shown), shown
        except Exception as exc:
            text = " ".join(str(exc).split())
            raise InvalidArgument(
                f"{where}: the state is no {schema.__name__}: {text:.200}", param="state"
            ) from exc

    def twice(self, one: str, leads: Mapping[int, str]) -> InvalidArgument:
        """Make the error of a node that LangGraph would run once in each of several steps."""
        ways = " and ".join(f"from {name} in step {step}" for step, name in sorted(leads.items()))
        return InvalidArgument(
            f"the node {one!r} is reached {ways}: LangGraph would run it each time, here it runs "
            f"once: let it wait for all of them, add_edge([...], {one!r})",
            param=one,
        )


@dataclass(frozen=True, slots=True)
class _Next:
    """Where a run leads to."""

    goes_to: frozenset[str] = frozenset()
    sent: tuple[tuple[str, Any], ...] = ()

    def __add__(self, other: _Next) -> _Next:
        return _Next(self.goes_to | other.goes_to, self.sent + other.sent)


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
        pulled, sent = self._reached(before)
        steps = {**pulled, **{one.place[0]: "what was sent" for one in sent}}
        if not steps:
            return EndedNode(None, updates=updates)
        if len(steps) > 1:
            raise self.shape.twice(self.name, steps)
        (step,) = steps
        seen = before_step(updates, step)
        whole = state_of(self.shape.keys, state, seen)
        runs: list[Awaitable[EndedNode]] = []
        if pulled:
            runs.append(self._run_once((step, 0, self.name), None, state, whole, seen))
        runs += [
            self._run_once(one.place, one, state, whole, seen)
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
        known = self.shape.known(self.shape.input_schema)
        if not isinstance(state, Mapping) or not state.keys() <= known:
            raise InvalidArgument(
                f"the state is {state!r:.80}: give an object with some of the keys "
                f"{', '.join(sorted(known))}",
                param="state",
            )
        leads, _ = await self._branched(state_of(self.shape.keys, state, {}))
        return EndedNode(0, self.shape.edges[START] | leads.goes_to, _sent((0, 0, START), leads))

    def _reached(self, before: Mapping[str, EndedNode]) -> tuple[dict[int, str], list[SentRun]]:
        """Return the steps in which edges, branches and commands lead here, each with the node
        that it comes from, and what was sent."""
        steps = {name: one.step for name, one in before.items() if one.step is not None}
        pulled = {
            step + 1: name for name, step in steps.items() if self.name in before[name].goes_to
        }
        for starts, end in self.shape.joins:
            if end == self.name and starts <= steps.keys():
                last = max(starts, key=lambda name: steps[name])
                pulled[steps[last] + 1] = last
        sent = [sent for one in before.values() for sent in one.sent if sent.node == self.name]
        return pulled, sent

    async def _run_once(
        self,
        place: Place,
        sent: SentRun | None,
        state: Any,
        whole: Mapping[str, Any],
        seen: Mapping[Place, Update],
    ) -> EndedNode:
        """Run the node on the state, or on what was ``sent``."""
        spec = self.shape.specs[self.name]
        read: set[str] = set()
        if sent is None:
            given, shown = self.shape.shown(spec.input_schema, whole, self.name)
            kept = {name: _elements(value) for name, value in whole.items()}
            found = await self._asked(spec.runnable, given)
            values, leads = self._update(found)
            self._check_untouched(whole, kept, values)
            read |= shown.read
        else:
            values, leads = self._update(await self._asked(spec.runnable, sent.given))
        made = Update(place, self.name, frozenset(seen), values)
        if self.shape.branches[self.name]:
            behind = dict(sorted({**seen, place: made}.items()))
            branched, read_there = await self._branched(state_of(self.shape.keys, state, behind))
            leads += branched
            read |= read_there
        made = dataclasses.replace(made, read=frozenset(read))
        goes_to = self.shape.edges[self.name] | leads.goes_to
        return EndedNode(place[0], goes_to, _sent(place, leads), {place: made})

    async def _asked(self, runnable: Any, given: Any) -> Any:
        try:
            return await runnable.ainvoke(given, self.shape.config)
        except Exception as exc:
            if type(exc).__name__ == "ParentCommand":
                raise self._for_another() from exc
            asked = _asked_of_the_run(exc)
            if asked is None:
                raise
            raise InvalidArgument(
                f"{self.name} calls {asked} of LangGraph, which asks a run of LangGraph that is "
                "not there here: take what it gives from the state",
                param=self.name,
            ) from exc

    def _check_untouched(
        self, whole: Mapping[str, Any], kept: Mapping[str, Any], values: Mapping[str, Any]
    ) -> None:
        """Refuse a node that changed a value of the state in place: others would see it or not, by
        chance."""
        for name, before in kept.items():
            is_set = name in values and self.shape.keys[name].join is None
            if not is_set and not _is_same(before, _elements(whole[name])):
                raise InvalidArgument(
                    f"{self.name} changes {name!r} of the state in place: copy it, and return what "
                    "it becomes",
                    param=name,
                )

    # -- what it returns -----------------------------------------------------------------------

    def _update(self, found: Any) -> tuple[dict[str, Any], _Next]:
        leads = _Next()
        if type(found).__name__ == "Command":
            leads = self._commanded(found)
            found = found.update
        if found is None:
            return {}, leads
        if not isinstance(found, Mapping):
            raise InvalidArgument(
                f"the node {self.name!r} returned {type(found).__name__}: return an object with "
                "the keys that it sets, or a Command with such an update",
                param=self.name,
            )
        if "__interrupt__" in found:
            raise InvalidArgument(
                f"the node {self.name!r} was interrupted: a query runs to its end; ask before it, "
                "and give the answer in its state",
                param=self.name,
            )
        return dict(found), leads

    def _commanded(self, command: Any) -> _Next:
        if command.graph is not None or command.resume is not None:
            raise self._for_another()
        goto = command.goto
        picked = goto if isinstance(goto, list | tuple) else [goto]
        allowed = self.shape.targets(self.name)
        for one in picked:
            if _is_send(one):
                continue
            if one not in allowed and one != END:
                raise InvalidArgument(
                    f"the node {self.name!r} goes to {one!r:.80}, and does not say so: annotate "
                    f"what it returns with Command[Literal[{one!r:.80}]]",
                    param=self.name,
                )
        named = frozenset(one for one in picked if not _is_send(one))
        return _Next(named, self._sends(picked, allowed, "Command[Literal[...]]"))

    def _for_another(self) -> InvalidArgument:
        return InvalidArgument(
            f"the node {self.name!r} returned a Command for another graph, or one that resumes: a "
            "Command here has an update and where to go in this graph",
            param=self.name,
        )

    async def _branched(self, state: Mapping[str, Any]) -> tuple[_Next, set[str]]:
        """Return where the branches lead to, and the keys that they read."""
        leads, read = _Next(), set[str]()
        for branch in self.shape.branches[self.name]:
            where = f"the branch {branch.name!r} of {self.name}"
            given, shown = self.shape.shown(branch.schema, state, where)
            found = await self._asked(branch.path, given)
            leads += self._chosen(branch, found, where)
            read |= shown.read
        return leads, read

    def _chosen(self, branch: Branch, found: Any, where: str) -> _Next:
        picked = found if isinstance(found, list | tuple) else [found]
        goes_to = set()
        for choice in picked:
            if _is_send(choice):
                continue
            if not isinstance(choice, Hashable) or choice not in branch.ends:
                raise InvalidArgument(
                    f"{where} returned {choice!r:.80}; it may lead to "
                    f"{', '.join(map(str, branch.ends))}",
                    param=self.name,
                )
            goes_to.add(branch.ends[choice])
        sent = self._sends(picked, frozenset(branch.ends.values()), "its path_map")
        return _Next(frozenset(goes_to), sent)

    def _sends(
        self, picked: Any, allowed: frozenset[str], where: str
    ) -> tuple[tuple[str, Any], ...]:
        found = []
        for one in picked:
            if not _is_send(one):
                continue
            if one.node not in allowed or one.node == END:
                raise InvalidArgument(
                    f"{self.name} sends to {one.node!r}, which {where} does not name: name it "
                    "there",
                    param=self.name,
                )
            if getattr(one, "timeout", None) is not None:
                raise InvalidArgument(
                    f"{self.name} sends to {one.node!r} with a timeout, which nothing here acts "
                    "on: leave it out; --deadline-s limits the query",
                    param=self.name,
                )
            found.append((one.node, one.arg))
        return tuple(found)


def finishing(shape: GraphShape) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return the function of the tool that makes the graph's output."""

    async def finish(state: Any, **ended: EndedNode) -> dict[str, Any]:
        """Return the graph's output as JSON values."""
        updates = joined(ended.values())
        check_reads(updates)
        whole = state_of(shape.keys, state, updates)
        shown = shape.known(shape.output_schema)
        return {name: _plain(name, one) for name, one in whole.items() if name in shown}

    return finish


async def _all(runs: list[Awaitable[EndedNode]]) -> list[EndedNode]:
    """Wait for all runs; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(one) for one in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for one in tasks:
            one.cancel()


def _sent(place: Place, leads: _Next) -> tuple[SentRun, ...]:
    return tuple(
        SentRun((place[0] + 1, 1, place, number), node, given)
        for number, (node, given) in enumerate(leads.sent)
    )


def _is_send(one: Any) -> bool:
    return type(one).__name__ == "Send"


def _asked_of_the_run(exc: BaseException) -> str | None:
    """Return the function of LangGraph that a traceback passes and that needs its run, or None."""
    at = exc.__traceback__
    while at is not None:
        if at.tb_frame.f_globals.get("__name__") in _OF_THE_RUN:
            return at.tb_frame.f_code.co_name
        at = at.tb_next
    return None


def _elements(value: Any) -> tuple[Any, ...] | None:
    """Return what a list, set or dict holds, or None for another value."""
    if isinstance(value, dict):
        return tuple(piece for item in value.items() for piece in item)
    return tuple(value) if isinstance(value, list | set) else None


def _is_same(before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> bool:
    if before is None or after is None:
        return before is after
    return len(before) == len(after) and all(map(lambda a, b: a is b, before, after))


def _plain(name: str, value: Any) -> Any:
    """Convert ``value`` to JSON values; messages and models of pydantic become objects."""
    if isinstance(value, Mapping):
        return {str(key): _plain(name, one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(name, one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(
            f"the state's {name!r} holds {value}, which JSON has no number for: set it to None",
            param=name,
        )
    if value is None or isinstance(value, str | bool | int | float):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise InvalidArgument(
            f"the state's {name!r} holds a {type(value).__name__}, which a result cannot hold: "
            "leave it out of the graph's output schema",
            param=name,
        )
    return _plain(name, dump(mode="json"))
