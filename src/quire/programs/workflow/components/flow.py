"""Conditions, and tools: functions of the developer as primitives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component, NodeShape, Shape
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.engines.tools_elsewhere import McpTools, ProgramTool
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.graphs.values import LISTS, Ref, ValueType


class Condition(Component):
    """Whether a text ``equals`` another one, without regard to case, outer spaces and a full
    stop. ``likely``: the outcome that is assumed until it is decided (``passes.speculate``); if it
    is absent, the most frequent earlier outcome."""

    config = frozenset({"equals", "likely"})
    shape = Shape("a condition", (("text",),), (("boolean",),))

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        if not isinstance(node.config.get("equals"), str):
            raise InvalidArgument(
                f"{node.name}: a condition needs the text 'equals': give one",
                param=f"{node.name}.equals",
            )
        likely = node.config.get("likely")
        if likely is not None and not isinstance(likely, bool):
            raise InvalidArgument(
                f"{node.name}: likely is {likely!r}: give true or false, or leave it out",
                param=f"{node.name}.likely",
            )

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        equals = site.option("equals", str)
        made = site.add(
            Op.CONDITION, "", site.by_type(), {"out": ValueType.BOOLEAN},
            config={"equals": equals, "likely": site.option("likely", bool)},
        )  # fmt: skip
        (out,) = site.outputs
        return {out: Value(Ref(made.id), ValueType.BOOLEAN)}


class Tooling(Component):
    """A function of the engine, called with the inputs by name; it returns the one output. If the
    component is batchable the function is called with parts of its lists, and returns an element
    for each of their elements. ``effects``: names of what it changes; tools with a common effect
    keep the order that ``>>`` gives them. ``pure``: its result depends on its inputs alone, and it
    changes nothing."""

    config = frozenset({"function", "effects", "pure"})

    def changeable(self, node: NodeShape) -> frozenset[str]:
        return frozenset()

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        if engine is None or engine.tools_elsewhere is None:
            function = function_of(node, engine)
            given = [name for name, kind in node.inputs.items() if kind is not ValueType.DONE]
            check_parameters(node.name, function, given)
        else:
            _check_tool_name(node, engine.tools_elsewhere)
        if len(node.outputs) != 1:
            raise InvalidArgument(
                f"{node.name}: a tool has one output, not {len(node.outputs)}: return one value",
                param=f"{node.name}.outputs",
            )
        if node.annotation == "batchable" and not LISTS & set(node.outputs.values()):
            raise InvalidArgument(
                f"{node.name}: the output of a batchable tool must be a list: make it one, or drop "
                "the annotation",
                param=f"{node.name}.outputs",
            )
        check_effects(node)
        _check_pure(node)

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        lists = {name: one for name, one in site.inputs.items() if one.kind in LISTS}
        sizes = {name: one.size for name, one in lists.items()}
        batched = tuple(lists) if site.batchable else ()
        if batched and len(set(sizes.values()) - {None}) > 1:
            raise site.error("inputs", f"have {sizes} elements: give lists of one length")
        size = None if None in sizes.values() else next(iter(sizes.values()), None)
        ((out, kind),) = site.outputs.items()
        made = site.add(
            Op.TOOL, "", site.arguments(), {"out": kind},
            batched=batched, size=size,
            config={
                "function": site.config.get("function"), "pure": site.option("pure", bool, False),
            },
            writes=frozenset(f"effect:{one}" for one in site.config.get("effects", ())),
        )  # fmt: skip
        return {out: Value(Ref(made.id), kind, size if batched else None)}


def _check_tool_name(node: NodeShape, tools: McpTools | ProgramTool) -> None:
    name = node.config.get("function")
    if isinstance(tools, ProgramTool) and name is not None:
        raise InvalidArgument(
            f"{node.name}: function is {name!r}, and its engine is the program "
            f"{tools.program!r}: leave it out",
            param=f"{node.name}.function",
        )
    if isinstance(tools, McpTools) and not (isinstance(name, str) and name):
        raise InvalidArgument(
            f"{node.name}: function is {name!r}: name a tool of the MCP server {tools.server}",
            param=f"{node.name}.function",
        )


def function_of(node: NodeShape, engine: Engine | None) -> Callable[..., Any]:
    """The function that a component names.

    Raises:
        InvalidArgument: its engine has none of that name.
    """
    functions = {} if engine is None else engine.functions
    name = node.config.get("function")
    if not isinstance(name, str) or name not in functions:
        raise InvalidArgument(
            f"{node.name}: function is {name!r}; the engine has "
            f"{', '.join(functions) or 'none'}: name one of them",
            param=f"{node.name}.function",
        )
    return functions[name]


def check_effects(node: NodeShape) -> None:
    """Raise ``InvalidArgument`` if ``effects`` is not a list of names."""
    effects = node.config.get("effects", ())
    if not isinstance(effects, list | tuple) or not all(isinstance(e, str) for e in effects):
        raise InvalidArgument(
            f"{node.name}: effects is {effects!r}: give a list of names",
            param=f"{node.name}.effects",
        )


def _check_pure(node: NodeShape) -> None:
    pure = node.config.get("pure", False)
    if not isinstance(pure, bool) or (pure and node.config.get("effects")):
        raise InvalidArgument(
            f"{node.name}: pure is {pure!r}: give true or false, and true only without effects",
            param=f"{node.name}.pure",
        )


def check_parameters(node: str, function: Callable[..., Any], given: list[str]) -> None:
    """Check that the function can be called with the inputs ``given``, as far as its signature
    shows.

    Raises:
        InvalidArgument: it cannot.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return
    try:
        signature.bind(**dict.fromkeys(given))
    except TypeError as exc:
        raise InvalidArgument(
            f"{node}: the function {getattr(function, '__name__', function)!r} cannot be called "
            f"with the inputs {', '.join(given) or 'none'} ({exc}): name its parameters like them",
            param=f"{node}.inputs",
        ) from exc
