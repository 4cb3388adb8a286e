"""A ``Growth`` as bytes, so that its function need not be called again."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from quire.programs.workflow.durable.stored_values import json_of
from quire.programs.workflow.template.growth import Growth
from quire.programs.workflow.template.node import Annotation, Node


class _Component(msgspec.Struct, frozen=True):
    name: str
    engine: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    annotation: Annotation | None
    config: dict[str, Any]
    when: str | None
    before: list[str]


class _Growth(msgspec.Struct, frozen=True):
    """A ``Growth``; ``values`` are JSON."""

    components: list[_Component]
    values: str


def growth_bytes(where: str, growth: Growth) -> bytes:
    """``growth`` as bytes. ``where``: the component that has grown, for errors.

    Raises:
        InvalidArgument: a value that JSON cannot represent.
    """
    components = [
        _Component(
            node.name,
            node.engine,
            {name: str(kind) for name, kind in node.inputs.items()},
            {name: str(kind) for name, kind in node.outputs.items()},
            node.annotation,
            dict(node.config),
            node.when,
            [later.name for later in node.before],
        )
        for node in growth.nodes
    ]
    values = json_of(where, "values", dict(growth.values))
    return msgspec.msgpack.encode(_Growth(components, values))


def growth_of(content: bytes) -> Growth:
    """The ``Growth`` from the result of ``growth_bytes``."""
    kept = msgspec.msgpack.decode(content, type=_Growth)
    nodes = {
        one.name: Node(
            one.engine,
            one.inputs,
            one.outputs,
            one.annotation,
            one.config,
            name=one.name,
            when=one.when,
        )
        for one in kept.components
    }
    for one in kept.components:
        nodes[one.name].before += [nodes[later] for later in one.before]
    return Growth(list(nodes.values()), json.loads(kept.values))
