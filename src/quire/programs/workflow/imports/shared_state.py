"""The state that the nodes of a graph share: what each has seen, and how updates become one state.

A node sees the updates of those before it, in an order in which each stands behind those that it
has seen itself. A key is overwritten, or joined by its reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from quire.core.errors import InvalidArgument

MISSING = object()


@dataclass(frozen=True, slots=True)
class Key:
    """``join``: of the value so far and an update; None: an update takes its place. ``first``: what
    it is before any update."""

    join: Callable[[Any, Any], Any] | None = None
    first: Any = MISSING


@dataclass(frozen=True, slots=True)
class Update:
    """``place``: of the node in the graph's order. ``seen``: the places of those whose updates it
    has seen."""

    place: int
    node: str
    seen: frozenset[int]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndedNode:
    """A node that ``ran``, or was passed over. ``goes_to``: the nodes that its edges and branches
    lead to. ``updates``: its own and all that it has seen."""

    ran: bool
    goes_to: frozenset[str]
    updates: Mapping[int, Update]


def joined(ended: Iterable[EndedNode]) -> dict[int, Update]:
    """The updates that several have seen, each once, in their order."""
    found: dict[int, Update] = {}
    for one in ended:
        found.update(one.updates)
    return dict(sorted(found.items()))


def state_of(
    keys: Mapping[str, Key], given: Mapping[str, Any], updates: Mapping[int, Update]
) -> dict[str, Any]:
    """The state after ``given`` and ``updates``; keys without a value are not in it.

    Raises:
        InvalidArgument: an update of a key that is not there, or two nodes of which neither has
            seen the other overwrite one key.
    """
    state = {name: copy(key.first) for name, key in keys.items() if key.first is not MISSING}
    writers: dict[str, Update] = {}
    for update in [Update(-1, "the input", frozenset(), given), *updates.values()]:
        for name, value in update.values.items():
            if name not in keys:
                raise InvalidArgument(
                    f"{update.node} sets {name!r}, which is no key of the state; it has "
                    f"{', '.join(keys)}",
                    param=name,
                )
            _set(state, keys[name], name, value)
            if keys[name].join is None:
                before = writers.setdefault(name, update)
                if before.place >= 0 and before is not update and before.place not in update.seen:
                    raise InvalidArgument(
                        f"{before.node} and {update.node} both set {name!r} side by side: give the "
                        "key a reducer, or an edge between them",
                        param=name,
                    )
                writers[name] = update
    return state


def _set(state: dict[str, Any], key: Key, name: str, value: Any) -> None:
    state[name] = value if key.join is None or name not in state else key.join(state[name], value)
