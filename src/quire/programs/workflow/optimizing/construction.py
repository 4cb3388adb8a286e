"""Builds the p-graph of a query: every component of the template as primitives (Algorithm 1,
GraphTransform).

Owns the sizes that follow from the query itself. The values of the query are not part of a graph,
so that a graph can be used again for another query of the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.chunker import num_chunks
from quire.programs.workflow.components import ComponentSite, Value
from quire.programs.workflow.components.building import (
    MAX_PRIMITIVES,
    too_many_primitives,
    unordered,
)
from quire.programs.workflow.components.documents import chunking_of
from quire.programs.workflow.documents import checked_documents
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import LISTS, QUERY, Ref, ValueType, odd_vector
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.sites import site_of

NodeConfig = Mapping[str, Mapping[str, Any]]


def checked_query(
    app: App,
    query: Mapping[str, Any],
    check_documents: Callable[[Any], Any] = checked_documents,
) -> dict[str, Any]:
    """The inputs of ``query``, checked against the types in the template.

    Raises:
        InvalidArgument: an input is missing, unknown, or of another type.
    """
    wanted = app.query_inputs
    if not isinstance(query, Mapping):
        raise InvalidArgument(
            f"the query is {query!r:.80}: give its inputs by name ({', '.join(wanted)})",
            param="query",
        )
    for name in query:
        if name not in wanted:
            takes = ", ".join(wanted) or "none"
            raise InvalidArgument(f"{app.name} has no input {name!r}; it has {takes}", param=name)
    for name in wanted:
        if name not in query:
            raise InvalidArgument(f"{app.name}: the input {name!r} is missing: give it", param=name)
    checked = {
        name: check_documents(query[name])
        if kind is ValueType.DOCUMENTS
        else _checked(name, kind, query[name])
        for name, kind in wanted.items()
    }
    for node in app.nodes:
        given = {name: checked[name] for name in node.inputs if name in checked}
        app.component(node).check_given(node, given)
    return checked


def measured(app: App, query: Mapping[str, Any], config: NodeConfig) -> dict[str, int]:
    """The numbers of elements that follow from a checked query: of its lists, and of the chunks of
    its documents. They decide the shape of its graph."""
    sizes = {name: len(query[name]) for name, kind in app.query_inputs.items() if kind in LISTS}
    documents: dict[str, list[dict[str, str]]] = {
        name: query[name] for name, kind in app.query_inputs.items() if kind is ValueType.DOCUMENTS
    }
    for node in app.nodes:
        kind = app.engines[node.engine].kind if node.engine in app.engines else ""
        given = [documents[name] for name in node.inputs if name in documents]
        if kind == "parser" and given:
            documents[next(iter(node.outputs))] = given[0]
        if kind == "chunker" and given:
            size, overlap = chunking_of(
                site_of(node, app.engines[node.engine], config[node.name], {}, {}, {})
            )
            total = sum(num_chunks(one["text"], size, overlap) for one in given[0])
            if not total:
                raise InvalidArgument(
                    "the documents have no words: give documents with text", param="documents"
                )
            sizes[next(iter(node.outputs))] = total
    return sizes


def p_graph(
    app: App,
    config: NodeConfig,
    sizes: Mapping[str, int],
    results: Iterable[str] | None = None,
    stored: Mapping[str, int | None] = MappingProxyType({}),
) -> PrimitiveGraph:
    """The graph of primitives of a query with these ``sizes``; ``config`` as from
    ``App.configured``. ``results``: the wanted values (default: those of the application).
    ``stored``: per engine, the number of rows that the query has put into it already, None if that
    is unknown.

    Raises:
        InvalidArgument: a configuration that gives no graph.
    """
    if not app.nodes:
        raise InvalidArgument(f"{app.name} has no template: call update_template first")
    values = {
        name: Value(Ref(QUERY, name), kind, sizes.get(name))
        for name, kind in app.query_inputs.items()
    }
    rows = dict(stored)
    sites: dict[str, ComponentSite] = {}
    for node in app.nodes:
        engine = app.engines.get(node.engine)
        site = sites[node.name] = site_of(node, engine, config[node.name], values, sizes, rows)
        made = app.component(node).build(site)
        values.update((name, replace(one, guard=site.when)) for name, one in made.items())
        if sum(len(one.primitives) for one in sites.values()) > MAX_PRIMITIVES:
            raise too_many_primitives(node.name)
    after = {one: set[str]() for site in sites.values() for one in _ids(site.primitives)}
    for node in app.nodes:
        for later in node.before:
            for head in _heads(sites[later.name].primitives):
                after[head.id] |= _ids(_tails(sites[node.name].primitives))
    primitives = {
        one.id: replace(one, after=frozenset(after[one.id]))
        for site in sites.values()
        for one in site.primitives
    }
    wanted = app.results if results is None else results
    refs = {name: values[name].ref for name in wanted}
    graph = PrimitiveGraph(MappingProxyType(primitives), MappingProxyType(refs), app.query_inputs)
    _check_effects(graph)
    return graph


def _ids(primitives: list[Primitive]) -> set[str]:
    return {one.id for one in primitives}


def _heads(primitives: list[Primitive]) -> list[Primitive]:
    own = _ids(primitives)
    return [one for one in primitives if not one.sources & own]


def _tails(primitives: list[Primitive]) -> list[Primitive]:
    used = {source for one in primitives for source in one.sources}
    return [one for one in primitives if one.id not in used]


def _check_effects(graph: PrimitiveGraph) -> None:
    """Check that primitives whose effects conflict have an order: otherwise their result would
    depend on chance."""
    with_effects = [one for one in graph.primitives.values() if one.reads or one.writes]
    for place, one in enumerate(with_effects):
        for other in with_effects[place + 1 :]:
            ordered = one.id in graph.ancestors[other.id] or other.id in graph.ancestors[one.id]
            if one.conflicts(other) and not ordered:
                raise unordered(one.node, other.node)


def _checked(name: str, kind: ValueType, value: Any) -> Any:
    if kind is ValueType.TEXT and isinstance(value, str) and value:
        return value
    is_list = kind is ValueType.TEXTS and isinstance(value, list) and bool(value)
    if is_list and all(isinstance(one, str) and one for one in value):
        return value
    if kind is ValueType.BOOLEAN and isinstance(value, bool):
        return value
    is_rows = kind is ValueType.VECTORS and isinstance(value, list) and bool(value)
    if is_rows and odd_vector(value) is None:
        return value
    if kind is ValueType.OBJECT and isinstance(value, Mapping):
        return value
    words = {
        ValueType.TEXT: "a text",
        ValueType.TEXTS: "a list of texts, none of them empty",
        ValueType.OBJECT: "an object",
        ValueType.BOOLEAN: "true or false",
        ValueType.VECTORS: "a list of vectors, lists of numbers, all finite and of one length",
    }
    raise InvalidArgument(
        f"the input {name!r} is {value!r:.80}: give {words.get(kind, f'a value of type {kind}')}",
        param=name,
    )
