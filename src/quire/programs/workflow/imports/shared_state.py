"""The state that the nodes of a graph share: the updates that each has seen, and their result.

A run of a node has a *step*, that of LangGraph: one more than the step of what led to it. Updates
are in the order of LangGraph: by step, then by name, sent runs last. A node sees the updates of
the nodes before it, and notes which keys it reads, so that one that reads what LangGraph would show
it and it has not seen is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import InvalidArgument

MISSING = object()

Place = tuple[Any, ...]
"""The place of a run in the order of LangGraph: ``(step, 0, node)``, or ``(step, 1, place of the
sender, number)`` for a run that was sent its input."""


Values = tuple[tuple[str, Any], ...]
"""Keys with a value each, in the order in which they are set; one key may be there twice."""


@dataclass(frozen=True, slots=True)
class Key:
    """``join``: the reducer of the value so far and an update; None: an update overwrites the
    value. ``first``: the value before any update."""

    join: Callable[[Any, Any], Any] | None = None
    first: Any = MISSING


@dataclass(frozen=True, slots=True)
class Update:
    """What one run set. ``seen``: the places of the runs whose updates it has seen. ``read``: the
    keys of the state that it, or a branch behind it, read."""

    place: Place
    node: str
    seen: frozenset[Place]
    values: Values
    read: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SentRun:
    """A run of ``node`` with the input ``given`` in place of the state."""

    place: Place
    node: str
    given: Any


@dataclass(frozen=True, slots=True)
class EndedNode:
    """A node that ran in ``step``, or was skipped (None). ``goes_to``: the nodes that its edges,
    branches and commands lead to. ``sent``: the runs that it sends. ``updates``: its own and all
    that it has seen."""

    step: int | None
    goes_to: frozenset[str] = frozenset()
    sent: tuple[SentRun, ...] = ()
    updates: Mapping[Place, Update] = field(default_factory=dict)


def joined(ended: Iterable[EndedNode]) -> dict[Place, Update]:
    """Return the updates that several nodes have seen, each once, in their order."""
    found: dict[Place, Update] = {}
    for one in ended:
        found.update(one.updates)
    return dict(sorted(found.items()))


def before_step(updates: Mapping[Place, Update], step: int) -> dict[Place, Update]:
    """Return the updates that LangGraph shows in ``step``: those of the steps before."""
    return {place: one for place, one in updates.items() if place[0] < step}


def state_of(
    keys: Mapping[str, Key], given: Mapping[str, Any], updates: Mapping[Place, Update]
) -> dict[str, Any]:
    """Return the state after ``given`` and ``updates``, without the keys that have no value.

    Raises:
        InvalidArgument: see ``updated``.
    """
    first = {name: copy(key.first) for name, key in keys.items() if key.first is not MISSING}
    begun = Update((-1,), "the input", frozenset(), tuple(given.items()))
    return updated(keys, first, [begun, *updates.values()])


def updated(
    keys: Mapping[str, Key], state: Mapping[str, Any], updates: Iterable[Update]
) -> dict[str, Any]:
    """Return the state that ``updates`` make of ``state``.

    Raises:
        InvalidArgument: an update of a key that is not there, or two of the same step that
            overwrite one key.
    """
    state = dict(state)
    writers: dict[str, Update] = {}
    replaced: dict[str, Update] = {}
    for update in updates:
        for name, value in update.values:
            if name not in keys:
                raise InvalidArgument(
                    f"{update.node} sets {name!r}, which is no key of the state; it has "
                    f"{', '.join(keys)}",
                    param=name,
                )
            before, writers[name] = writers.get(name), update
            join = keys[name].join
            if join is None:
                _check_alone(update, before, name, value)
                state[name] = value
                continue
            first = replaced.get(name)
            is_replaced = first is not None and first.place[0] == update.place[0]
            is_overwrite, given = _overwrite(value)
            if is_overwrite and first is not None and is_replaced:
                raise InvalidArgument(
                    f"{_who(first, update)} {name!r} to an Overwrite in one step: let one of them "
                    "do so",
                    param=name,
                )
            if is_overwrite:
                state[name], replaced[name] = given, update
            elif not is_replaced:
                state[name] = join(state[name], value) if name in state else value
    return state


def _check_alone(update: Update, before: Update | None, name: str, value: Any) -> None:
    if type(value).__name__ == "Overwrite":
        raise InvalidArgument(
            f"{update.node} sets {name!r} to an Overwrite, and the key has no reducer: set it to "
            "the value itself",
            param=name,
        )
    if before is not None and before.place[0] == update.place[0]:
        raise InvalidArgument(
            f"{_who(before, update)} {name!r} side by side: give the key a reducer, or an edge "
            "between them",
            param=name,
        )


def _who(before: Update, update: Update) -> str:
    if before is update:
        return f"several values of {update.node} set"
    if before.node == update.node:
        return f"several runs of {update.node} set"
    return f"{before.node} and {update.node} both set"


def _overwrite(value: Any) -> tuple[bool, Any]:
    """Return whether ``value`` is an Overwrite of LangGraph, in any of its forms, and its value."""
    if type(value).__name__ == "Overwrite":
        return True, value.value
    if isinstance(value, dict) and value.keys() == {"__overwrite__"}:
        return True, value["__overwrite__"]
    if isinstance(value, dict) and value.get("type") == "__overwrite__" and "value" in value:
        return True, value["value"]
    return False, None


def check_reads(updates: Mapping[Place, Update]) -> None:
    """Refuse runs that read a key which a node of an earlier step sets and no edge leads from.

    In LangGraph all nodes of a step end before the next begins, so that they would have seen it.

    Raises:
        InvalidArgument: names both nodes, and the key.
    """
    for reader in updates.values():
        for writer in updates.values():
            if writer.place[0] >= reader.place[0] or writer.place in reader.seen:
                continue
            for name in sorted(reader.read & {name for name, _ in writer.values}):
                raise InvalidArgument(
                    f"{reader.node} reads {name!r}, which {writer.node} sets in an earlier step, "
                    f"and no edge leads from {writer.node} to {reader.node}: add one, give "
                    f"{reader.node} an input_schema without {name!r}, or import the graph with "
                    "supersteps=True",
                    param=name,
                )
