"""What a node of a ``StateGraph`` returned: the values that it sets, and its commands.

The rules are those of ``_get_updates`` in LangGraph's ``graph/state.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.imports.shared_state import MISSING, Values


def returned(found: Any, node: str, keys: Iterable[str]) -> tuple[Values, tuple[Any, ...]]:
    """Return the values that ``node`` sets by what it returned, and the commands in that. It may
    be an object with keys, an instance of a schema of the state (its fields among ``keys`` are
    set), a Command, or a list with a Command.

    Raises:
        InvalidArgument: it is something else; or the node was interrupted.
    """
    if _is_command(found):
        return _values(found.update, node, keys), (found,)
    if isinstance(found, list | tuple) and any(_is_command(one) for one in found):
        values: Values = ()
        commands: tuple[Any, ...] = ()
        for one in found:
            more, others = returned(one, node, keys)
            values, commands = values + more, commands + others
        return values, commands
    return _values(found, node, keys), ()


def _values(found: Any, node: str, keys: Iterable[str]) -> Values:
    if found is None:
        return ()
    if isinstance(found, Mapping):
        if "__interrupt__" in found:
            raise InvalidArgument(
                f"the node {node!r} was interrupted: a query runs to its end; ask before it, and "
                "give the answer in its state",
                param=node,
            )
        return tuple(found.items())
    if isinstance(found, list | tuple) and found and all(map(_is_pair, found)):
        return tuple((name, value) for name, value in found)
    values = _fields(found, keys)
    if not values:
        raise InvalidArgument(
            f"the node {node!r} returned {found!r:.80} ({type(found).__name__}): return an object "
            "with the keys that it sets, or a Command with such an update",
            param=node,
        )
    return values


def _fields(found: Any, keys: Iterable[str]) -> Values:
    """Return the fields of an instance of a class with annotations. A field of a pydantic model
    that is None by default is left out unless it was set, as in LangGraph."""
    if not any(inspect.get_annotations(base) for base in type(found).__mro__):
        return ()
    given: Collection[str] = getattr(found, "model_fields_set", ())
    fields = getattr(type(found), "model_fields", {})
    return tuple(
        (key, value)
        for key in keys
        if (value := getattr(found, key, MISSING)) is not MISSING
        and (
            value is not None
            or key in given
            or key not in fields
            or fields[key].default is not None
        )
    )


def _is_pair(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)


def _is_command(one: Any) -> bool:
    return type(one).__name__ == "Command"
