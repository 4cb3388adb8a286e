"""``ComponentSite``: one component of one query while its primitives are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.graphs.primitives import CONTROL_FLOW, Op, Primitive
from quire.programs.workflow.graphs.values import Ref, ValueType

DONE_MARK = "done."
MAX_PRIMITIVES = 4096
"""The most primitives of a graph as it is built."""
MAX_GROWN_PRIMITIVES = 4 * MAX_PRIMITIVES
"""The most primitives of a query after growth, those that have ended included, and of a graph that
a pass has made."""


def too_many_primitives(node: str) -> InvalidArgument:
    """Return the error for a graph that is too large with the primitives of ``node``."""
    return InvalidArgument(
        f"{node}: the graph has more than {MAX_PRIMITIVES} primitives: take less context, larger "
        "chunks, or another synthesis",
        param=node,
    )


def unordered(one: str, other: str) -> InvalidArgument:
    """Return the error for two components whose result would depend on which runs first."""
    return InvalidArgument(
        f"{one} and {other} work on the same thing, and nothing says which comes first: write "
        f"{one} >> {other}, or the other way round",
        param=other,
    )


@dataclass(frozen=True, slots=True)
class Value:
    """A named value of the template: its source, and its number of elements if that is known before
    the graph runs. ``guard``: the value is empty unless this is true."""

    ref: Ref
    kind: ValueType
    size: int | None = None
    guard: Ref | None = None

    def seen_from(self, guard: Ref | None) -> Value:
        """The same value for a component that runs only if ``guard`` is true. Its number of
        elements is certain only on its own branch."""
        certain = self.guard in (None, guard)
        return self if certain else Value(self.ref, self.kind)


@dataclass(slots=True)
class ComponentSite:
    """``inputs``: the component's inputs by name; ``outputs``: the types of its outputs.
    ``measured``: the sizes of outputs that follow from the query itself. ``stored``: per engine,
    the number of rows that the query has put into it so far, or None if that is unknown.
    ``whole_calls``: the engine is a model behind HTTP."""

    node: str
    engine: str | None
    batchable: bool
    splittable: bool
    config: Mapping[str, Any]
    inputs: Mapping[str, Value]
    outputs: Mapping[str, ValueType]
    when: Ref | None
    measured: Mapping[str, int]
    stored: dict[str, int | None]
    whole_calls: bool = False
    primitives: list[Primitive] = field(default_factory=list)

    def add(
        self,
        op: Op,
        step: str,
        inputs: Mapping[str, Ref],
        outputs: Mapping[str, ValueType],
        **fields: Any,
    ) -> Primitive:
        """Make one primitive of the component.

        Raises:
            InvalidArgument: the component has ``MAX_PRIMITIVES`` already.
        """
        if len(self.primitives) >= MAX_PRIMITIVES:
            raise too_many_primitives(self.node)
        made = Primitive(
            id=f"{self.node}.{step}" if step else self.node,
            op=op,
            node=self.node,
            engine=None if op in CONTROL_FLOW else self.engine,
            inputs=MappingProxyType(dict(inputs)),
            outputs=MappingProxyType(dict(outputs)),
            when=self.when,
            **fields,
        )
        self.primitives.append(made)
        return made

    def defer(self) -> Mapping[str, Value]:
        """Build the component later, when its inputs have arrived, because its primitives depend on
        numbers that are not known before."""
        made = self.add(
            Op.GROWTH, "", {name: one.ref for name, one in self.inputs.items()}, self.outputs
        )
        return {name: Value(Ref(made.id, name), kind) for name, kind in self.outputs.items()}

    def by_type(self) -> dict[str, Ref]:
        """The inputs named by their types, for a component that has one of each. An input that only
        gives the order keeps its own name, after ``done.``."""
        return {
            f"{DONE_MARK}{name}" if one.kind is ValueType.DONE else str(one.kind): one.ref
            for name, one in self.inputs.items()
        }

    def arguments(self) -> dict[str, Ref]:
        """The inputs by name, for a function. An input that only gives the order has ``done.``
        before its name."""
        return {
            f"{DONE_MARK}{name}" if one.kind is ValueType.DONE else name: one.ref
            for name, one in self.inputs.items()
        }

    def option(self, name: str, kind: type, default: Any = None) -> Any:
        """The configuration ``name``; null counts as absent.

        Raises:
            InvalidArgument: it has another type.
        """
        given = self.config.get(name)
        given = default if given is None else given
        wrong = not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool)
        if given is not None and wrong:
            raise self.error(name, f"is {given!r}: give {_NAMES[kind]}")
        return given

    def count(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        """An integer of the configuration, at least ``least``."""
        given: int | None = self.option(name, int, default)
        if given is not None and given < least:
            raise self.error(name, f"is {given}: give {least} or more")
        return given

    def error(self, name: str, text: str) -> InvalidArgument:
        """An error about the component's field ``name``."""
        return InvalidArgument(f"{self.node}: {name} {text}", param=f"{self.node}.{name}")


_NAMES: Mapping[type, str] = {
    int: "an integer", str: "a text", bool: "true or false", dict: "an object", list: "a list"
}  # fmt: skip
