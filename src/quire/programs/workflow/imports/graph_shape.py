"""What was read of a ``StateGraph``: its nodes, what leads from one to another, and its state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.imports.shared_state import Key
from quire.programs.workflow.imports.shown_state import ShownState

START, END = "__start__", "__end__"

Join = tuple[frozenset[str], str]
"""Nodes that another one waits for, and that one."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A function that chooses where a node leads to. ``ends``: the node of each of its answers, or
    None if it may answer with any node. ``schema``: what it sees of the state."""

    name: str
    path: Any
    ends: Mapping[Any, str] | None
    schema: Any


@dataclass(frozen=True, slots=True)
class GraphShape:
    """A graph as it was read. ``specs``: its nodes. ``schemas``: the keys of each schema.
    ``managed``: the keys that LangGraph gives a value in each step, and by what.
    ``commands``: where the commands of each node may lead. ``config``: that of the compiled graph.
    """

    specs: Mapping[str, Any]
    keys: Mapping[str, Key]
    managed: Mapping[str, str]
    schemas: Mapping[Any, frozenset[str]]
    input_schema: Any
    output_schema: Any
    edges: Mapping[str, frozenset[str]]
    joins: frozenset[Join]
    branches: Mapping[str, list[Branch]]
    commands: Mapping[str, frozenset[str]]
    config: Any

    def targets(self, one: str) -> frozenset[str]:
        """Return all that an edge, a branch or a command of ``one`` may lead to."""
        found = self.edges[one] | self.commands.get(one, frozenset())
        for branch in self.branches[one]:
            found |= frozenset(self.specs) if branch.ends is None else set(branch.ends.values())
        return found

    def known(self, schema: Any) -> frozenset[str]:
        return self.schemas.get(schema, frozenset(self.keys))

    def check_input(self, state: Any) -> None:
        """Raise ``InvalidArgument`` if ``state`` cannot be the graph's input."""
        known = self.known(self.input_schema) - self.managed.keys()
        if not isinstance(state, Mapping) or not state.keys() <= known:
            raise InvalidArgument(
                f"the state is {state!r:.80}: give an object with some of the keys "
                f"{', '.join(sorted(known))}",
                param="state",
            )

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
