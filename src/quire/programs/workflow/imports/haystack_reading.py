"""Reads files of ``haystack.Pipeline.dump``, within bounds; it refuses fields it does not know.

Nothing that a file names is imported or executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from quire.core.errors import InvalidArgument
from quire.programs.workflow.imports.haystack_types import (
    INPUTS,
    KNOWN,
    OUTPUTS,
    PREFIXES,
    KnownComponent,
)

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
"""The values of a file, each repeated one counted anew."""
_FIELDS = {
    "components", "connections", "metadata", "max_runs_per_component", "connection_type_validation",
    "max_loops_allowed",
}  # fmt: skip
"""The last four have no effect here: no component runs twice, and every connection is checked."""


class Socket(NamedTuple):
    component: str
    name: str


@dataclass(frozen=True, slots=True)
class HaystackComponent:
    """A component: its type, and its parameters as far as they are used."""

    name: str
    known: KnownComponent
    shown_type: str
    used: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``senders``: the output that each connected input takes. ``notes``: what the import does
    differently from the file."""

    parts: Mapping[str, HaystackComponent]
    senders: Mapping[Socket, Socket]
    notes: Sequence[str]


def read_pipeline(path: Path) -> Pipeline:
    """Read the pipeline in a file.

    Raises:
        InvalidArgument: a file, type, parameter or connection that has no counterpart.
    """
    found = _loaded(path)
    if not isinstance(found, dict) or not isinstance(found.get("components"), dict):
        raise InvalidArgument(f"{path} is no pipeline: it needs 'components', as Pipeline.dump has")
    for key in found:
        if key not in _FIELDS:
            raise InvalidArgument(
                f"{path} has the field {key!r}, which nothing reads: leave it out"
            )
    notes: list[str] = []
    parts = {str(name): _part(str(name), one, notes) for name, one in found["components"].items()}
    senders: dict[Socket, Socket] = {}
    for connection in found.get("connections") or []:
        if not isinstance(connection, dict) or connection.keys() != {"sender", "receiver"}:
            raise InvalidArgument(f"{path}: {connection!r} is no connection of sender and receiver")
        sender = _socket(connection["sender"], parts, is_input=False)
        receiver = _socket(connection["receiver"], parts, is_input=True)
        if senders.setdefault(receiver, sender) != sender:
            raise InvalidArgument(
                f"{'.'.join(receiver)} has two senders: give each component inputs of its own"
            )
    return Pipeline(parts, senders, notes)


def _loaded(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InvalidArgument(f"{path} cannot be read: {exc}", param="workflow") from exc
    if len(content) > MAX_BYTES:
        raise InvalidArgument(f"{path} has {len(content)} bytes; at most {MAX_BYTES} are read")
    try:
        text = content.decode()
        if _num_values(yaml.compose(text, Loader=yaml.SafeLoader), {}) > MAX_VALUES:
            raise InvalidArgument(
                f"{path} has more than {MAX_VALUES} values, with those that its aliases repeat: "
                "shorten it"
            )
        return yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        reason = " ".join(str(exc).replace('in "<unicode string>", ', "at ").split())
        raise InvalidArgument(f"{path} is no YAML that can be read: {reason}") from exc


def _num_values(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Count the values of a file, also those that an alias repeats. ``known``: the counts so far;
    a value that holds itself counts as too many."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = MAX_VALUES
        held = [one for pair in node.value for one in (pair if isinstance(pair, tuple) else [pair])]
        known[id(node)] = 1 + sum(_num_values(one, known) for one in held)
    return known[id(node)]


def _part(name: str, one: Any, notes: list[str]) -> HaystackComponent:
    if not isinstance(one, dict) or not isinstance(one.get("type"), str):
        raise InvalidArgument(f"the component {name!r} has no 'type'", param=name)
    if not one.keys() <= {"type", "init_parameters"}:
        raise InvalidArgument(f"the component {name!r} has {', '.join(one)}: give type and "
                              "init_parameters", param=name)  # fmt: skip
    shown = one["type"]
    known = KNOWN.get(shown.rpartition(".")[2]) if shown.startswith(PREFIXES) else None
    if known is None:
        raise InvalidArgument(
            f"the component {name!r} is a {shown}, which has no counterpart here; those that have "
            f"are {', '.join(KNOWN)}: use one of them, or write the component in Python, as a tool "
            "of an App",
            param=name,
        )
    given = one.get("init_parameters") or {}
    if not isinstance(given, dict):
        raise InvalidArgument(f"{name}.init_parameters is {given!r:.60}: give a mapping")
    for key, value in given.items():
        _check(name, known, key, value, notes)
    return HaystackComponent(
        name, known, shown, {key: one for key, one in given.items() if key in known.used}
    )


def _check(name: str, known: KnownComponent, key: str, value: Any, notes: list[str]) -> None:
    if key in known.used or key in known.harmless:
        return
    if key in known.told:
        notes.append(f"{name}: the node's own model is used in place of {value}")
        return
    if key not in known.fixed:
        raise InvalidArgument(
            f"{name} has the parameter {key!r}, which nothing here reads: leave it out, if the "
            "pipeline is right without it",
            param=f"{name}.{key}",
        )
    if value not in known.fixed[key]:
        allowed = " or ".join(repr(one) for one in known.fixed[key])
        raise InvalidArgument(
            f"{name}.{key} is {value!r:.80}; here it can only be {allowed}: change it, or write "
            "the component in Python, as a tool of an App",
            param=f"{name}.{key}",
        )


def _socket(written: Any, parts: Mapping[str, HaystackComponent], *, is_input: bool) -> Socket:
    """Read ``component.socket``, or the name of a component that has one socket only."""
    component, dot, name = str(written).rpartition(".")
    if str(written) in parts:
        component, dot, name = str(written), "", ""
    part = parts.get(component)
    if part is None:
        raise InvalidArgument(
            f"the connection names {written!r}, and there is no component {component or written!r}:"
            f" there are {', '.join(parts)}",
            param=str(written),
        )
    role = part.known.role
    has = INPUTS[role] if is_input else OUTPUTS[role]
    if role == "generator" and is_input:
        is_chat = "Chat" in part.shown_type.rpartition(".")[2]
        has = ("messages",) if is_chat else ("prompt",)
    if not dot:
        if len(has) != 1:
            sockets = ", ".join(has) or "the variables of its template"
            raise InvalidArgument(
                f"the connection names {written!r} alone: write {written}.SOCKET, with one of "
                f"{sockets}",
                param=component,
            )
        name = has[0]
    if name not in has and not (is_input and role == "prompt"):
        raise InvalidArgument(
            f"the connection names {written!r}; of {component} only {', '.join(has) or 'nothing'} "
            "can be connected here: leave it out",
            param=component,
        )
    return Socket(component, name)
