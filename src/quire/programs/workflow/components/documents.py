"""Documents: parsing, and cutting into chunks."""

from __future__ import annotations

from collections.abc import Mapping

from quire.programs.workflow.components.building import Site, Value
from quire.programs.workflow.components.component import Component, Shape
from quire.programs.workflow.primitives import Op
from quire.programs.workflow.values import Ref, ValueType

CHUNK_TOKENS, OVERLAP_TOKENS = 256, 30


class Parsing(Component):
    """Documents to their texts. They are read before the graph is built, because its size depends
    on them; this hands them on."""

    config = frozenset[str]()
    shape = Shape(("documents",), ("documents",))

    def build(self, site: Site) -> Mapping[str, Value]:
        (given,) = site.inputs.values()
        made = site.add(
            Op.PARSE, "", site.by_type(), {"out": ValueType.DOCUMENTS},
            batched=("documents",) if site.batchable else (), size=given.size,
        )  # fmt: skip
        (out,) = site.outputs
        return {out: Value(Ref(made.id), ValueType.DOCUMENTS, given.size)}


class Chunking(Component):
    """Documents to overlapping chunks of their texts. How many is told by the query's documents, so
    that the graph of a query has its final size before any engine is asked."""

    config = frozenset({"chunk_size", "overlap"})
    shape = Shape(("documents",), ("texts",))

    def build(self, site: Site) -> Mapping[str, Value]:
        (given,) = site.inputs.values()
        size, overlap = chunking_of(site)
        made = site.add(
            Op.CHUNK, "", site.by_type(), {"out": ValueType.TEXTS},
            size=given.size, config={"chunk_size": size, "overlap": overlap},
        )  # fmt: skip
        (out,) = site.outputs
        return {out: Value(Ref(made.id), ValueType.TEXTS, site.measured.get(out))}


def chunking_of(site: Site) -> tuple[int, int]:
    """Tokens of a chunk, and those that it shares with the one before."""
    size = site.count("chunk_size", CHUNK_TOKENS)
    overlap = site.count("overlap", OVERLAP_TOKENS, least=0)
    assert size is not None, "it has a default"
    assert overlap is not None, "it has a default"
    if overlap >= size:
        raise site.error("overlap", f"is {overlap} of chunks of {size} tokens: give less")
    return size, overlap
