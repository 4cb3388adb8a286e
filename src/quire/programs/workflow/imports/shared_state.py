"""The state that the nodes of a graph share: the updates that each has seen, and their result.

A node sees the updates of the nodes before it; each update comes after those that its node had
seen. An update overwrites a key, or the key's reducer joins it to the value so far.
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
    """``join``: the reducer of the value so far and an update; None: an update overwrites the
    value. ``first``: the value before any update."""

    join: Callable[[Any, Any], Any] | None = None
    first: Any = MISSING


@dataclass(frozen=True, slots=True)
class Update:
    """``place``: the node's place in the graph's order. ``seen``: the places of the nodes whose
    updates it has seen."""

    place: int
    node: str
    seen: frozenset[int]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndedNode:
    """A node that ``ran`` or was skipped. ``goes_to``: the nodes that its edges and branches lead
    to. ``updates``: its own and all that it has seen."""

    ran: bool
    goes_to: frozenset[str]
    updates: Mapping[int, Update]


def joined(ended: Iterable[EndedNode]) -> dict[int, Update]:
    """Return the updates that several nodes have seen, each once, in the graph's order."""
    found: dict[int, Update] = {}
    for one in ended:
        found.update(one.updates)
    return dict(sorted(found.items()))


def state_of(
    keys: Mapping[str, Key], given: Mapping[str, Any], updates: Mapping[int, Update]
) -> dict[str, Any]:
    """Return the state after ``given`` and ``updates``, without the keys that have no value.

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
