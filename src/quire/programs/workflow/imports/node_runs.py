"""One run of a node of a ``StateGraph``: what it is shown, what it sets, and where it leads to.

What LangGraph would answer differently is refused by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.imports.graph_shape import END, Branch, GraphShape
from quire.programs.workflow.imports.node_functions import running_with
from quire.programs.workflow.imports.node_updates import returned
from quire.programs.workflow.imports.shared_state import Values

_OF_THE_RUN = ("langgraph.types", "langgraph.config", "langgraph.runtime")
"""Modules whose functions ask a run of LangGraph, which is not there here."""


@dataclass(frozen=True, slots=True)
class Leads:
    """Where a run leads to: nodes, and nodes that are sent an input each, in their order."""

    goes_to: frozenset[str] = frozenset()
    sent: tuple[tuple[str, Any], ...] = ()

    def __add__(self, other: Leads) -> Leads:
        return Leads(self.goes_to | other.goes_to, self.sent + other.sent)


@dataclass(frozen=True, slots=True)
class SentInput:
    """What a run gets in place of the state."""

    given: Any


@dataclass(frozen=True, slots=True)
class NodeRuns:
    """The runs of the node ``name``. ``anywhere``: its commands and branches may lead to nodes
    that they do not name."""

    shape: GraphShape
    name: str
    anywhere: bool = False

    async def run(
        self, whole: Mapping[str, Any], sent: SentInput | None
    ) -> tuple[Values, Leads, set[str]]:
        """Run the node on the state ``whole``, or on what was ``sent``.

        Returns what it sets, where its command leads to, and the keys of the state that it read.

        Raises:
            InvalidArgument: it returned or did what cannot be answered as LangGraph does.
        """
        spec = self.shape.specs[self.name]
        if sent is not None:
            values, leads = self._update(await self._asked(spec.runnable, sent.given))
            return values, leads, set()
        given, shown = self.shape.shown(spec.input_schema, whole, self.name)
        kept = {name: _elements(value) for name, value in whole.items()}
        values, leads = self._update(await self._asked(spec.runnable, given))
        self._check_untouched(whole, kept, values)
        return values, leads, shown.read

    async def branched(self, state: Mapping[str, Any]) -> tuple[Leads, set[str]]:
        """Return where the edges and branches lead to behind ``state``, and the keys that branches
        read."""
        leads, read = Leads(self.shape.edges[self.name]), set[str]()
        for branch in self.shape.branches[self.name]:
            where = f"the branch {branch.name!r} of {self.name}"
            given, shown = self.shape.shown(branch.schema, state, where)
            found = await self._asked(branch.path, given)
            leads += self._chosen(branch, found, where)
            read |= shown.read
        return leads, read

    async def _asked(self, runnable: Any, given: Any) -> Any:
        try:
            with running_with(self.shape.config):
                return await runnable.ainvoke(given, self.shape.config)
        except Exception as exc:
            if type(exc).__name__ == "ParentCommand":
                return self._raised_by_subgraph(exc)
            asked = _asked_of_the_run(exc)
            if asked is None:
                raise
            raise InvalidArgument(
                f"{self.name} calls {asked} of LangGraph, which asks a run of LangGraph that is "
                "not there here: take what it gives from the state",
                param=self.name,
            ) from exc

    def _check_untouched(
        self, whole: Mapping[str, Any], kept: Mapping[str, Any], values: Values
    ) -> None:
        """Refuse a node that changed a value of the state in place: others would see it or not, by
        chance."""
        names = {name for name, _ in values}
        for name, before in kept.items():
            is_set = name in names and self.shape.keys[name].join is None
            if not is_set and not _is_same(before, _elements(whole[name])):
                raise InvalidArgument(
                    f"{self.name} changes {name!r} of the state in place: copy it, and return what "
                    "it becomes",
                    param=name,
                )

    # -- what it returns -----------------------------------------------------------------------

    def _update(self, found: Any) -> tuple[Values, Leads]:
        values, commands = returned(found, self.name, self.shape.keys)
        return values, sum((self._commanded(one) for one in commands), Leads())

    def _commanded(self, command: Any) -> Leads:
        if command.graph is not None or command.resume is not None:
            raise self._for_another()
        goto = command.goto
        picked = goto if isinstance(goto, list | tuple) else [goto]
        allowed = self._allowed(self.shape.targets(self.name))
        for one in picked:
            if is_send(one):
                continue
            if one not in allowed and one != END:
                raise InvalidArgument(
                    f"the node {self.name!r} goes to {one!r:.80}, {self._unnamed(one)}",
                    param=self.name,
                )
        named = frozenset(one for one in picked if not is_send(one))
        return Leads(named, self._sends(picked, allowed, "Command[Literal[...]]"))

    def _allowed(self, named: frozenset[str]) -> frozenset[str]:
        return frozenset(self.shape.specs) if self.anywhere else named

    def _unnamed(self, one: Any) -> str:
        if self.anywhere:
            return f"and no node is called so: the nodes are {', '.join(self.shape.specs)}"
        return (
            f"and does not say so: annotate what it returns with Command[Literal[{one!r:.80}]], or "
            f"add it with add_node(..., destinations=({one!r:.80},))"
        )

    def _raised_by_subgraph(self, exc: Exception) -> Any:
        """Return the command of a node of a subgraph for its parent graph, which is this one."""
        command = exc.args[0]
        if command.graph == "__parent__":
            raise self._for_another() from exc
        return replace(command, graph=None)

    def _for_another(self) -> InvalidArgument:
        return InvalidArgument(
            f"the node {self.name!r} returned a Command for another graph, or one that resumes: a "
            "Command here has an update and where to go in this graph",
            param=self.name,
        )

    def _chosen(self, branch: Branch, found: Any, where: str) -> Leads:
        picked = found if isinstance(found, list | tuple) else [found]
        ends = branch.ends
        if ends is None:
            ends = {one: one for one in (*self.shape.specs, END)}
        goes_to = set()
        for choice in picked:
            if is_send(choice):
                continue
            if not isinstance(choice, Hashable) or choice not in ends:
                raise InvalidArgument(
                    f"{where} returned {choice!r:.80}; it may lead to {', '.join(map(str, ends))}",
                    param=self.name,
                )
            goes_to.add(ends[choice])
        allowed = self._allowed(frozenset(ends.values()))
        return Leads(frozenset(goes_to), self._sends(picked, allowed, "its path_map"))

    def _sends(
        self, picked: Any, allowed: frozenset[str], where: str
    ) -> tuple[tuple[str, Any], ...]:
        found = []
        for one in picked:
            if not is_send(one):
                continue
            if one.node not in allowed or one.node == END:
                raise InvalidArgument(
                    f"{self.name} sends to {one.node!r}, which "
                    + ("is no node" if self.anywhere else f"{where} does not name: name it there"),
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


def is_send(one: Any) -> bool:
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
