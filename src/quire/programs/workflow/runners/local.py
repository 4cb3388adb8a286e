"""Engines that are part of the program: documents, the query's vectors, and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quire.programs.workflow.chunker import chunks, with_surroundings
from quire.programs.workflow.execution.functions import called
from quire.programs.workflow.execution.made_values import checked_value
from quire.programs.workflow.execution.scheduler import check_elements
from quire.programs.workflow.execution.vectors import QueryVectors
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.values import LISTS, plain
from quire.programs.workflow.sharing import Sharing
from quire.programs.workflow.template.function_threads import FunctionThreads


class DocumentRunner:
    """``PrimitiveRunner`` of parsers and chunkers, in a thread, because a document may be long."""

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        documents: list[dict[str, str]] = inputs["documents"]
        if primitive.op is Op.PARSE:
            return {"out": documents}  # they were read before the graph was built
        if "around" in primitive.outputs:
            pairs = await asyncio.to_thread(_surrounded, documents, **primitive.config)
            return {"out": [chunk for chunk, _ in pairs], "around": [text for _, text in pairs]}
        size, overlap = primitive.config["chunk_size"], primitive.config["overlap"]
        return {"out": await asyncio.to_thread(_cut, documents, size, overlap)}

    async def close(self) -> None:
        """Do nothing: it holds nothing."""


class VectorRunner:
    """``PrimitiveRunner`` of an engine of kind vectors, over the collection of this query."""

    def __init__(self, collection: QueryVectors) -> None:
        self._collection = collection

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if primitive.op is Op.INGESTION:
            await self._collection.add(
                primitive.first, inputs["vectors"], inputs["texts"], primitive.order
            )
            return {"out": True}
        num: int = primitive.config["top_k"]
        found = await self._collection.nearest(inputs["vectors"], num, primitive.order)
        texts = [text for one in found for text in one]
        check_elements(primitive, texts)
        return {"out": texts}

    async def close(self) -> None:
        await self._collection.close()


class ToolRunner:
    """``PrimitiveRunner`` of an engine of kind tool whose tools are functions."""

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        sharing: Sharing | None = None,
        threads: FunctionThreads | None = None,
    ) -> None:
        self._functions, self._sharing = functions, sharing
        self._threads = threads or FunctionThreads()

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        inputs = await plain(inputs)
        if self._sharing is None or not primitive.config.get("pure"):
            return await self._called(primitive, inputs)
        function = self._functions[primitive.config["function"]]
        made_by = await self._sharing.identity(function)
        if made_by is None:
            return await self._called(primitive, inputs)
        depends = ["tool", made_by, dict(inputs)]
        called = partial(self._called, primitive, inputs)
        made: Mapping[str, Any] = await self._sharing.once(primitive, depends, called)
        return made

    async def _called(self, primitive: Primitive, inputs: Mapping[str, Any]) -> dict[str, Any]:
        name: str = primitive.config["function"]
        made = await called(primitive.node, name, self._functions, inputs, self._threads)
        return {"out": await checked_result(primitive, f"the function {name!r}", made)}

    async def close(self) -> None:
        """Do nothing: it holds nothing."""


def _cut(documents: list[dict[str, str]], size: int, overlap: int) -> list[str]:
    return [piece for one in documents for piece in chunks(one["text"], size, overlap)]


def _surrounded(
    documents: list[dict[str, str]], chunk_size: int, overlap: int, neighbours: int
) -> list[tuple[str, str]]:
    """Return the chunks of every document, each with its surroundings in the same document."""
    return [
        pair
        for one in documents
        for pair in with_surroundings(one["text"], chunk_size, overlap, neighbours)
    ]


async def checked_result(primitive: Primitive, who: str, made: Any) -> Any:
    """Return the result of a tool, if it may be the component's output. ``who``: the tool.

    Raises:
        InvalidArgument: the result is of another type, too large, too deep, or has another number
            of elements.
    """
    (kind,) = primitive.outputs.values()
    found = await checked_value(primitive.node, who, kind, made)
    if kind in LISTS:
        check_elements(primitive, found)
    return found
