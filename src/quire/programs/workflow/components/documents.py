"""Documents: parsing, and cutting into chunks."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component, NodeShape, Shape
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.graphs.values import Ref, ValueType

CHUNK_TOKENS, OVERLAP_TOKENS, NEIGHBOURS = 256, 30, 4
MAX_REPEATED = 16
"""The most chunks that share a token: all chunks are together at most this many times as long as
the documents."""
MAX_NEIGHBOURS = 16
"""The most neighbours; the texts around all chunks grow with their number."""


class Parsing(Component):
    """Passes the texts of documents on. Documents are read before the graph is built, because its
    size depends on them."""

    config = frozenset[str]()
    shape = Shape("a parser", (("documents",),), (("documents",),))

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        (given,) = site.inputs.values()
        made = site.add(
            Op.PARSE, "", site.by_type(), {"out": ValueType.DOCUMENTS},
            batched=("documents",) if site.batchable else (), size=given.size,
        )  # fmt: skip
        (out,) = site.outputs
        return {out: Value(Ref(made.id), ValueType.DOCUMENTS, given.size)}


class Chunking(Component):
    """Cuts the texts of documents into overlapping chunks; a second output has the text around each
    chunk, ``neighbours`` other chunks long. The number of chunks follows from the query's
    documents, so that the graph of a query has its final size before any engine is called."""

    config = frozenset({"chunk_size", "overlap", "neighbours"})
    shape = Shape("a chunker", (("documents",),), (("texts",), ("texts", "texts")))

    def changeable(self, node: NodeShape) -> frozenset[str]:
        return self.config if len(node.outputs) > 1 else self.config - {"neighbours"}

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        if len(node.outputs) == 1 and node.config.get("neighbours") is not None:
            raise InvalidArgument(
                f"{node.name}: neighbours is for the text that surrounds each chunk: add a second "
                "output of type texts, or leave it out",
                param=f"{node.name}.neighbours",
            )

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        (given,) = site.inputs.values()
        size, overlap = chunking_of(site)
        config = {"chunk_size": size, "overlap": overlap}
        if len(site.outputs) > 1:
            config["neighbours"] = _neighbours_of(site)
        ports = dict(zip(site.outputs, ("out", "around"), strict=False))
        made = site.add(
            Op.CHUNK, "", site.by_type(), dict.fromkeys(ports.values(), ValueType.TEXTS),
            size=given.size, config=config,
        )  # fmt: skip
        (num, *_) = (site.measured.get(out) for out in ports)
        return {out: Value(Ref(made.id, port), ValueType.TEXTS, num) for out, port in ports.items()}


def chunking_of(site: ComponentSite) -> tuple[int, int]:
    """The number of tokens of a chunk, and of those that it shares with the one before."""
    size = site.count("chunk_size", CHUNK_TOKENS)
    overlap = site.count("overlap", OVERLAP_TOKENS, least=0)
    assert size is not None, "it has a default"
    assert overlap is not None, "it has a default"
    if overlap >= size or overlap * MAX_REPEATED > size * (MAX_REPEATED - 1):
        most = min(size - 1, size * (MAX_REPEATED - 1) // MAX_REPEATED)
        raise site.error(
            "overlap", f"is {overlap} of chunks of {size} tokens: give less, at most {most}"
        )
    return size, overlap


def _neighbours_of(site: ComponentSite) -> int:
    num = site.count("neighbours", NEIGHBOURS)
    assert num is not None, "it has a default"
    if num > MAX_NEIGHBOURS:
        raise site.error("neighbours", f"is {num}: give at most {MAX_NEIGHBOURS}")
    return num
