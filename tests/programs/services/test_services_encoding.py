"""What one request of a program to the node's encoders may hold, and what reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quire.core.errors import InvalidArgument
from quire.core.ids import ThreadId
from quire.programs.services.encoding import MAX_CHARS, MAX_TEXTS, CallOrder, EncodingService
from quire.programs.services.operations import ProgramServices


class Encoders:
    """``EncodeTexts`` that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def encoders(self) -> list[dict[str, Any]]:
        return [{"id": "small"}]

    async def embed(
        self,
        texts: Sequence[str],
        model: str | None,
        dimensions: int | None,
        truncate: bool,
        order: CallOrder,
    ) -> dict[str, Any]:
        self.asked.append((len(texts), model, dimensions, truncate, order))
        return {}

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        model: str | None,
        truncate: bool,
        order: CallOrder,
    ) -> dict[str, Any]:
        self.asked.append((query, len(documents), model, truncate, order))
        return {}


class Asking:
    """A program's requests, as they come from its ``Api``."""

    def __init__(self) -> None:
        self.encoders = Encoders()
        self._services = ProgramServices(lambda: [EncodingService(self.encoders)])

    async def embed(self, texts: list[str], **fields: Any) -> None:
        given = {"texts": texts, "model": None, "dimensions": None, "truncate": False, **fields}
        await self._services.ask("encoders.embed", given)

    async def rerank(self, query: str, documents: list[str], **fields: Any) -> None:
        given = {"query": query, "documents": documents, "model": None, "truncate": True, **fields}
        await self._services.ask("encoders.rerank", given)


async def test_a_request_and_its_order_reach_the_encoders() -> None:
    asking = Asking()
    order = {"thread": 3, "depth": 2, "priority": -1, "invocation": 7, "remaining_us": 9}
    await asking.embed(["a", "b"], model="small", dimensions=1, truncate=True, **order)
    await asking.rerank("which", ["a"], **order)
    expected = CallOrder(ThreadId(3), 2, -1, 7, 9)
    assert asking.encoders.asked == [
        (2, "small", 1, True, expected),
        ("which", 1, None, True, expected),
    ]


async def test_a_request_has_so_many_texts() -> None:
    asking = Asking()
    await asking.embed(["x"] * MAX_TEXTS)
    await asking.rerank("which", ["x"] * MAX_TEXTS)
    assert len(asking.encoders.asked) == 2
    for num_texts in (0, MAX_TEXTS + 1):
        with pytest.raises(InvalidArgument, match=f"embed: {num_texts} texts; give 1 to 2048"):
            await asking.embed(["x"] * num_texts)
        with pytest.raises(InvalidArgument, match=f"rerank: {num_texts} documents; give 1 to"):
            await asking.rerank("which", ["x"] * num_texts)
    assert len(asking.encoders.asked) == 2


async def test_a_request_has_so_many_characters_the_query_counted_once() -> None:
    asking = Asking()
    half = "x" * (MAX_CHARS // 2)
    await asking.embed([half, half])
    await asking.rerank(half[:-1], [half, "x"])
    assert len(asking.encoders.asked) == 2
    with pytest.raises(InvalidArgument, match="split the texts"):
        await asking.embed([half, half, "x"])
    with pytest.raises(InvalidArgument, match="split the documents"):
        await asking.rerank(half, [half, "x"])


async def test_what_says_nothing_is_refused() -> None:
    asking = Asking()
    with pytest.raises(InvalidArgument, match=r"embed: texts\[1\] is empty"):
        await asking.embed(["x", ""])
    with pytest.raises(InvalidArgument, match="the query is empty"):
        await asking.rerank("", ["x"])
    with pytest.raises(InvalidArgument, match="dimensions is 0; give 1 or more"):
        await asking.embed(["x"], dimensions=0)
    assert not asking.encoders.asked
