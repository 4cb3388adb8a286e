"""Digests of everything that defines a query, so that an id belongs to one query only.

They do not cover the code of functions: functions with the same name count as equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.core.encoding import EncoderKind
from quire.programs.api import Api
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.growing_graph import MAX_GROWTH_CHARS
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.runners.encoding import ENCODER_KINDS
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.node import Node


def digest(*values: Any) -> str:
    """A digest of JSON values; the order of names in objects does not matter."""
    content = msgspec.json.encode(values, order="sorted", enc_hook=repr)
    return hashlib.sha256(content).hexdigest()


def digests_of_query(
    app: App, query: Mapping[str, Any], config: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """The digests of a ``QueryHead``. ``query``: the inputs as the client gave them."""
    settings = {name: dict(changes) for name, changes in config.items() if changes}
    return digests_of_template(app) | {"config": digest(settings), "inputs": digest(dict(query))}


def digests_of_template(app: App) -> dict[str, str]:
    engines = [_engine(engine) for engine in app.engines.values()]
    return {"template": digest(app.name, engines, [_component(node) for node in app.nodes])}


async def digests_of_graph(
    api: Api, graph: PrimitiveGraph, engines: Sequence[Engine]
) -> dict[str, str]:
    """The digests of a ``QueryPlanned``. ``engines``: the engines that the graph may use."""
    primitives = [_primitive(graph.primitives[one]) for one in graph.order]
    results = {name: str(ref) for name, ref in graph.results.items()}
    grows = any(one.op is Op.GROWTH for one in graph.primitives.values())
    ids = [MAX_GROWTH_CHARS] if grows else []  # results of what grows are stored under its ids
    models = digest(await _models(api, engines))
    return {"graph": digest(primitives, results, *ids), "models": models}


def _engine(engine: Engine) -> list[Any]:
    config = {name: one for name, one in engine.config.items() if name != "functions"}
    return [engine.name, engine.kind, config, sorted(engine.functions)]


def _component(node: Node) -> list[Any]:
    return [
        node.name, node.engine, node.annotation, node.when, list(node.inputs.items()),
        list(node.outputs.items()), dict(node.config), sorted(later.name for later in node.before),
    ]  # fmt: skip


def _primitive(primitive: Primitive) -> list[Any]:
    inputs = {name: str(ref) for name, ref in primitive.inputs.items()}
    return [
        primitive.id, primitive.op, primitive.engine, inputs, str(primitive.when),
        sorted(primitive.after), primitive.size, primitive.first, list(map(repr, primitive.parts)),
        dict(primitive.config),
    ]  # fmt: skip


async def _models(api: Api, engines: Sequence[Engine]) -> list[Any]:
    """The node's models and encoders behind the application's engines."""
    kinds = {engine.kind for engine in engines if engine.endpoint is None}
    served = [[one.id, one.served.info.content] for one in api.available_models()]
    found: list[Any] = served if "llm" in kinds else []
    wanted: set[EncoderKind] = {ENCODER_KINDS[kind] for kind in kinds if kind in ENCODER_KINDS}
    if wanted:
        encoders = await api.available_encoders()
        found.append([[one.kind, one.name] for one in encoders if one.kind in wanted])
    return found
