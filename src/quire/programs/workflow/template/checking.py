"""What is refused with a template: names and types that do not fit, a cycle, and components that no
query could build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components import Component, Value
from quire.programs.workflow.components.building import (
    MAX_PRIMITIVES,
    too_many_primitives,
    unordered,
)
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import LISTS, QUERY, Ref, ValueType
from quire.programs.workflow.template.node import Node
from quire.programs.workflow.template.sites import site_of


def check_names(nodes: Sequence[Node]) -> None:
    named: dict[str, Node] = {}
    made: dict[str, Node] = {}
    for node in nodes:
        if named.setdefault(node.name, node) is not node:
            raise InvalidArgument(
                f"two components are named {node.name!r}: rename one", param=node.name
            )
        for name in node.outputs:
            if made.setdefault(name, node) is not node:
                raise InvalidArgument(
                    f"{made[name].name} and {node.name} both produce {name!r}: rename one output",
                    param=f"{node.name}.outputs",
                )


def check_shapes(nodes: Sequence[Node], component_of: Callable[[Node], Component]) -> None:
    """Refuse a component whose types are not those of its kind."""
    makers = {name: node.name for node in nodes for name in node.outputs}
    for node in nodes:
        shape = component_of(node).shape_of(node)
        side = shape.misfit(node)
        if side is None:
            continue
        given = [
            f"{name!r} ({kind}, {f'from {makers[name]}' if name in makers else 'from the query'})"
            for name, kind in node.inputs.items()
        ]
        made = [f"{name!r} ({kind})" for name, kind in node.outputs.items()]
        raise InvalidArgument(
            f"{node.name}: {shape}. It is given {' and '.join(given) or 'nothing'}, and has "
            f"{' and '.join(made) or 'nothing'} to produce: change the types of its {side}, or "
            "take the output of another component",
            param=f"{node.name}.{side}",
        )


def check_types(nodes: Sequence[Node]) -> None:
    """Refuse a name with two types, and a batchable component without a list to split."""
    types: dict[str, tuple[str, ValueType]] = {
        name: (f"{node.name} produces", kind)
        for node in nodes
        for name, kind in node.outputs.items()
    }
    for node in nodes:
        used = dict(node.inputs)
        if node.when is not None:
            used[node.when] = ValueType.BOOLEAN
            if node.when not in types:
                raise InvalidArgument(
                    f"{node.name}: 'when' names {node.when!r}, which no component produces: name "
                    "the output of a condition",
                    param=f"{node.name}.when",
                )
        for name, kind in used.items():
            where, known = types.setdefault(name, (f"{node.name} takes", kind))
            if known is not kind:
                raise InvalidArgument(
                    f"{node.name} takes {name!r} as {kind}, but {where} it as {known}: make the "
                    "types equal, or rename one",
                    param=f"{node.name}.inputs.{name}",
                )
        if node.annotation == "batchable" and not LISTS & set(node.inputs.values()):
            raise InvalidArgument(
                f"{node.name} is batchable but takes no list: give it an input of type texts, "
                "documents or vectors, or drop the annotation",
                param=f"{node.name}.annotation",
            )


def ordered(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Sort the components, each after those whose outputs it takes and those that precede it.

    Raises:
        InvalidArgument: some of them wait for one another.
    """
    after = _waits_for(nodes)
    order: dict[str, Node] = {}
    while len(order) < len(nodes):
        ready = [n for n in nodes if n.name not in order and after[n.name] <= order.keys()]
        if not ready:
            left = after.keys() - order.keys()
            circle = _circle({name: after[name] & left for name in left})
            raise InvalidArgument(
                f"the components {' -> '.join(circle)} wait for one another: remove an input or a "
                "'>>' that closes the cycle",
                param=circle[0],
            )
        order.update((node.name, node) for node in ready)
    return tuple(order.values())


def _waits_for(nodes: Sequence[Node]) -> dict[str, set[str]]:
    """Return the names of the components that each waits for: those whose outputs it takes, and
    those that precede it."""
    makers = {name: node.name for node in nodes for name in node.outputs}
    after = {
        node.name: {makers[name] for name in [*node.inputs, node.when] if name in makers}
        for node in nodes
    }
    for node in nodes:
        for later in node.before:
            after[later.name].add(node.name)
    return after


def _circle(waiting: Mapping[str, set[str]]) -> list[str]:
    """Return a cycle, from one component to the same. Each of ``waiting`` waits for another one."""
    way = [min(waiting)]
    while way[-1] not in way[:-1]:
        way.append(min(waiting[way[-1]]))
    circle = way[way.index(way[-1]) :]
    return circle[::-1]


def check_buildable(
    nodes: Iterable[Node],
    engines: Mapping[str, Engine],
    component_of: Callable[[Node], Component],
    query_inputs: Mapping[str, ValueType],
) -> None:
    """Build each of ``nodes``, which stand in their order, from lists of unknown length.
    ``component_of``: what makes its primitives.

    Raises:
        InvalidArgument: a component that no query can build, more primitives than a graph may
            have, or two components that work on the same thing without an order.
    """
    values = {name: Value(Ref(QUERY, name), kind) for name, kind in query_inputs.items()}
    stored: dict[str, int | None] = {}
    effects = list[Primitive]()
    num_primitives = 0
    for node in nodes:
        site = site_of(node, engines.get(node.engine), node.config, values, {}, stored)
        values.update(component_of(node).build(site))
        effects += [one for one in site.primitives if one.reads or one.writes]
        num_primitives += len(site.primitives)
        if num_primitives > MAX_PRIMITIVES:
            raise too_many_primitives(node.name)
    _check_effects(effects, _ancestors(nodes))


def _ancestors(nodes: Iterable[Node]) -> Mapping[str, set[str]]:
    """Return the names of all components before each of ``nodes``, which stand in their order."""
    waits_for, ancestors = _waits_for(list(nodes)), dict[str, set[str]]()
    for node in nodes:
        direct = waits_for[node.name]
        ancestors[node.name] = direct.union(*(ancestors[one] for one in direct))
    return ancestors


def _check_effects(effects: Sequence[Primitive], ancestors: Mapping[str, set[str]]) -> None:
    """Check that components whose effects conflict have an order."""
    for place, one in enumerate(effects):
        for other in effects[place + 1 :]:
            is_ordered = one.node in ancestors[other.node] or other.node in ancestors[one.node]
            if one.node != other.node and one.conflicts(other) and not is_ordered:
                raise unordered(one.node, other.node)
