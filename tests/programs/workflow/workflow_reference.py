"""Carries out a graph with engines that are functions, one primitive at a time, in any order that
its dependencies allow.

What it computes depends on the values alone, so two graphs mean the same if and only if the results
are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from quire.programs.workflow.chunker import chunks
from quire.programs.workflow.graphs.control_flow import decided
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import PREFILLS, Op, Primitive
from quire.programs.workflow.graphs.values import Ref, ValueType, empty


def digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:8]


def vector(text: str) -> list[float]:
    """Coarse, so that many rows are equally near and their order decides."""
    return [float(byte % 3) for byte in hashlib.sha256(text.encode()).digest()[:2]]


def elements(prompt: str, num: int) -> list[str]:
    return [digest(prompt, place) for place in range(num)]


Become = Callable[[Primitive, Mapping[str, Any]], Mapping[str, Any]]
"""What a growth gives for its inputs: its outputs by name."""


class ReferenceRun:
    """One query; ``order``: which of the primitives that may run is next; ``become``: what its
    growths give."""

    def __init__(
        self,
        graph: PrimitiveGraph,
        query: Mapping[str, Any],
        order: Random,
        become: Become | None = None,
    ) -> None:
        self._graph, self._query, self._order, self._become = graph, query, order, become
        self._values: dict[tuple[str, str], Any] = {}
        self._rows: list[tuple[int, Any, str]] = []
        self.ran: list[str] = []

    def results(self) -> dict[str, Any]:
        left = dict(self._graph.primitives)
        while left:
            ready = [one for one in left.values() if not one.parents & left.keys()]
            primitive = self._order.choice(ready)
            del left[primitive.id]
            self.ran.append(primitive.id)
            if primitive.when is not None and not self._value(primitive.when):
                outputs = {port: empty(kind) for port, kind in primitive.outputs.items()}
            else:
                inputs = {name: self._value(ref) for name, ref in primitive.inputs.items()}
                outputs = self.outputs(primitive, inputs)
            for port, value in outputs.items():
                self._values[primitive.id, port] = value
        return {name: self._value(ref) for name, ref in self._graph.results.items()}

    def _value(self, ref: Ref) -> Any:
        whole = self._query[ref.port] if ref.from_query else self._values[ref.primitive, ref.port]
        return ref.take(whole)

    def outputs(self, primitive: Primitive, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What a primitive gives for ``inputs``."""
        for name in primitive.batched:
            assert primitive.size in (None, len(inputs[name])), primitive.id
        if primitive.op in PREFILLS:
            return {"state": self._prefilled(primitive, inputs)}
        if primitive.op is Op.PARTIAL_DECODING:
            prompt, num = inputs["state"], primitive.config["elements"]
            return {"state": prompt, "out": [elements(prompt, num)[primitive.first]]}
        if primitive.op is Op.GROWTH:
            assert self._become is not None, f"{primitive.id} grows, and nobody says what it gives"
            return dict(self._become(primitive, inputs))
        return {"out": self._out(primitive, inputs)}

    def _prefilled(self, primitive: Primitive, inputs: Mapping[str, Any]) -> str:
        text: str = inputs.get("state") or ""
        for part in primitive.parts:
            value = part.text if part.name is None else inputs[part.name]
            if not isinstance(value, str):
                order = value[::-1] if primitive.config["last_first"] else value
                value = primitive.config["separator"].join(order)
            text += value
        return text

    def _out(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
        values = list(inputs.values())
        config = primitive.config
        match primitive.op:
            case Op.DECODING:
                num = primitive.size
                return digest(values[0]) if num is None else elements(values[0], num)
            case Op.CHUNK:
                (documents,) = values
                sizes = (config["chunk_size"], config["overlap"])
                return [piece for one in documents for piece in chunks(one["text"], *sizes)]
            case Op.EMBEDDING:
                given = values[0]
                return [vector(one) for one in ([given] if isinstance(given, str) else given)]
            case Op.INGESTION:
                texts, vectors = inputs["texts"], inputs["vectors"]
                rows = zip(vectors, texts, strict=True)
                self._rows += [(primitive.first + n, *row) for n, row in enumerate(rows)]
                return True
            case Op.SEARCHING:
                found = (self._nearest(one, config["top_k"]) for one in inputs["vectors"])
                return [text for texts in found for text in texts]
            case Op.SEARCH:
                asked = [inputs["text"]] if "text" in inputs else inputs["texts"]
                return [one for query in asked for one in elements(query, len(query) % 3)]
            case Op.RERANKING:
                return [int(digest(inputs["text"], one), 16) for one in inputs["texts"]]
            case Op.CHOOSING:
                best = decided(primitive, inputs)
                assert best is not None, "no engine chooses"
                return best["out"]
            case Op.CONDITION:
                return bool(int(digest(values[0]), 16) % 2)
            case Op.AGGREGATE:
                is_list = primitive.outputs["out"] is not ValueType.DONE
                return [one for given in values for one in given] if is_list else True
            case Op.TOOL if primitive.batched:
                return [digest(*row) for row in zip(*values, strict=True)]
            case Op.TOOL:
                is_list = primitive.outputs["out"] is ValueType.TEXTS
                return elements(digest(values), 3) if is_list else digest(values)
        raise AssertionError(primitive.op)

    def _nearest(self, wanted: Any, top_k: int) -> list[str]:
        def distance(row: tuple[int, Any, str]) -> int:
            return sum((a - b) ** 2 for a, b in zip(row[1], wanted, strict=True))

        best = sorted(self._rows, key=lambda row: (distance(row), row[0]))
        return [text for _, _, text in best[:top_k]]
