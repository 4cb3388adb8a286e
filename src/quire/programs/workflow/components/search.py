"""Web and text search: the node's search engine as a component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.search.service import MAX_TOP_K, check_search_query
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component, NodeShape, Shape
from quire.programs.workflow.components.prompts import read_prompt
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.graphs.values import Ref, ValueType

TOP_K = 4
"""Ayo's search-empowered generation gives four texts to the model."""
FIELDS: Mapping[str, ValueType] = dict.fromkeys(("title", "address", "text"), ValueType.TEXT)
"""The parts of ``result``."""


class Search(Component):
    """Finds texts for a query, or for each of several, with the node's search engine, best first.
    Their number, at most ``top_k`` for each query, is known when they are found. ``result``: the
    form of one result, with the parts ``{title}``, ``{address}`` and ``{text}``."""

    config = frozenset({"top_k", "result"})
    shape = Shape("a search", (("text",), ("texts",)), (("texts",),), waits=True)

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        top_k = node.config.get("top_k")
        if isinstance(top_k, int) and top_k > MAX_TOP_K:
            raise InvalidArgument(
                f"{node.name}: top_k is {top_k}: give 1 to {MAX_TOP_K}", param=f"{node.name}.top_k"
            )
        if node.config.get("result") is not None:
            read_prompt(node.name, "result", node.config["result"], FIELDS, ())

    def check_given(self, node: NodeShape, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            is_list = isinstance(value, list)
            for index, query in enumerate(value if is_list else [value]):
                where = f"{name}[{index}]" if is_list else name
                check_search_query(f"{node.name}: the input {where}", query, name)

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        (given,) = (one for one in site.inputs.values() if one.kind is not ValueType.DONE)
        size = 1 if given.kind is ValueType.TEXT else given.size
        is_batchable = site.batchable and given.kind is ValueType.TEXTS
        result = site.option("result", str, "{text}")
        made = site.add(
            Op.SEARCH, "", site.by_type(), {"out": ValueType.TEXTS},
            batched=("texts",) if is_batchable else (), size=size, fan=None,
            parts=read_prompt(site.node, "result", result, FIELDS, ()).parts,
            config={"top_k": site.count("top_k", TOP_K)},
        )  # fmt: skip
        (out,) = site.outputs
        return {out: Value(Ref(made.id), ValueType.TEXTS)}
