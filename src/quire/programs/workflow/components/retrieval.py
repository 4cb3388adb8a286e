"""Retrieval: vectors of texts, storing and searching them, and ranking the found texts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from quire.core.errors import InvalidArgument
from quire.programs.vectors.service import MAX_FOUND
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component, NodeShape, Shape
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.graphs.values import LISTS, Ref, ValueType

TOP_K = 3


class Embedding(Component):
    """Computes a vector for each of several texts, or for one text."""

    config = frozenset({"truncate"})
    shape = Shape("an embedding", (("text",), ("texts",)), (("vectors",),))

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        (given,) = site.inputs.values()
        size = 1 if given.kind is ValueType.TEXT else given.size
        made = site.add(
            Op.EMBEDDING, "", site.by_type(), {"out": ValueType.VECTORS},
            batched=(str(given.kind),) if site.batchable else (), size=size,
            config={"truncate": site.option("truncate", bool, False)},
        )  # fmt: skip
        (out,) = site.outputs
        return {out: Value(Ref(made.id), ValueType.VECTORS, size)}


class Vectors(Component):
    """``operation: ingest`` stores texts with their vectors in the query's collection, ``search``
    finds the ``top_k`` nearest texts of each vector in it."""

    config = frozenset({"operation", "top_k"})
    shapes: ClassVar[Mapping[str, Shape]] = MappingProxyType(
        {
            "ingest": Shape("ingestion", (("texts", "vectors"),), (("done",),), waits=True),
            "search": Shape("a search of vectors", (("vectors",),), (("texts",),), waits=True),
        }
    )

    def shape_of(self, node: NodeShape) -> Shape:
        return self.shapes.get(str(node.config.get("operation")), self.shape)

    def changeable(self, node: NodeShape) -> frozenset[str]:
        is_search = node.config["operation"] == "search"
        return self.config - {"operation"} if is_search else frozenset()

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        operation = node.config.get("operation")
        if operation not in self.shapes:
            raise InvalidArgument(
                f"{node.name}: operation is {operation!r}: give 'ingest' or 'search'",
                param=f"{node.name}.operation",
            )
        if operation == "ingest" and "top_k" in node.config:
            raise InvalidArgument(f"{node.name}: top_k is for search", param=f"{node.name}.top_k")
        top_k = node.config.get("top_k")
        if isinstance(top_k, int) and top_k > MAX_FOUND:
            raise InvalidArgument(
                f"{node.name}: top_k is {top_k}: give 1 to {MAX_FOUND}", param=f"{node.name}.top_k"
            )

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        ingests = site.config["operation"] == "ingest"
        return self._ingest(site) if ingests else self._search(site)

    def _ingest(self, site: ComponentSite) -> Mapping[str, Value]:
        lists = [one for one in site.inputs.values() if one.kind in LISTS]
        sizes = {one.size for one in lists}
        certain = sorted(size for size in sizes if size is not None)
        if len(certain) > 1:
            told = " and ".join(map(str, certain))
            raise site.error("inputs", f"have {told} elements: give a vector for each text")
        size = None if None in sizes else certain[0]  # otherwise the store compares
        assert site.engine is not None, "components other than conditions have an engine"
        known = site.stored.get(site.engine, 0)
        is_certain = known is not None and size is not None and site.when is None
        site.stored[site.engine] = (known or 0) + (size or 0) if is_certain else None
        made = site.add(
            Op.INGESTION, "", site.by_type(),
            {"out": ValueType.DONE}, batched=("texts", "vectors") if site.batchable else (),
            size=size, writes=frozenset({site.engine}),
        )  # fmt: skip
        (out,) = site.outputs
        return {out: Value(Ref(made.id), ValueType.DONE)}

    def _search(self, site: ComponentSite) -> Mapping[str, Value]:
        (size,) = (one.size for one in site.inputs.values() if one.kind is ValueType.VECTORS)
        top_k = site.count("top_k", TOP_K)
        assert top_k is not None, "it has a default"
        assert site.engine is not None, "components other than conditions have an engine"
        if site.engine not in site.stored:
            raise site.error(
                "operation", f"is 'search', and nothing is ingested into {site.engine!r} before: "
                f"write INGESTING >> {site.node} with the component that ingests"
            )  # fmt: skip
        stored = site.stored[site.engine]
        found = None if stored is None else min(top_k, stored)
        batchable = site.batchable and found is not None
        made = site.add(
            Op.SEARCHING, "", site.by_type(),
            {"out": ValueType.TEXTS}, batched=("vectors",) if batchable else (), size=size,
            fan=found or 1, reads=frozenset({site.engine}), config={"top_k": top_k},
        )  # fmt: skip
        (out,) = site.outputs
        total = None if size is None or found is None else size * found
        return {out: Value(Ref(made.id), ValueType.TEXTS, total)}


class Reranking(Component):
    """The ``top_n`` texts that are most relevant to a query, best first. A text that was found
    twice is ranked once; it is repeated only if there are fewer than ``top_n`` others.

    A score depends on its own text alone, so that texts can be scored as they are found."""

    config = frozenset({"top_n", "truncate"})
    shape = Shape("a ranking", (("text", "texts"),), (("texts",),))

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        top_n = site.count("top_n", TOP_K)
        assert top_n is not None, "it has a default"
        (given,) = (one for one in site.inputs.values() if one.kind is ValueType.TEXTS)
        found = given.size
        scored = site.add(
            Op.RERANKING, "score", site.by_type(), {"out": ValueType.SCORES},
            batched=("texts",), size=found,
            config={"truncate": site.option("truncate", bool, False)},
        )  # fmt: skip
        made = site.add(
            Op.CHOOSING, "", {"texts": given.ref, "scores": Ref(scored.id)},
            {"out": ValueType.TEXTS}, config={"top_n": top_n},
        )  # fmt: skip
        (out,) = site.outputs
        size = None if found is None else min(top_n, found)
        return {out: Value(Ref(made.id), ValueType.TEXTS, size)}
