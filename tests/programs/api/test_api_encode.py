"""``embed`` and ``rerank``: what reaches the node's encoders, and what comes of their rows."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from programs_port import Ports

from quire.core.calls import AskService
from quire.core.errors import InvalidArgument
from quire.programs.api import Api, connect_api
from quire.programs.api.encode import EncoderBatches

FIRST = {"thread": 0, "depth": 0, "priority": 0, "invocation": 0, "remaining_us": 0}
"""The place of a request that says nothing of it."""
LATER = {"thread": 4, "depth": 3, "priority": -2, "invocation": 1, "remaining_us": 5}


class Encoders:
    """The node's answer: a row of two numbers for each text, of one for each document."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def ask(self, question: AskService, undo: str | None = None) -> dict[str, Any]:
        self.asked.append({"name": question.name, **question.arguments})
        texts = question.arguments.get("texts") or question.arguments["documents"]
        width = 2 if question.name == "encoders.embed" else 1
        numbers = [float(number) for number in range(width * len(texts))]
        return {
            "dimensions": width,
            "values": struct.pack(f"<{len(numbers)}f", *numbers),
            "num_batches": 2,
            "num_short_batches": 1,
        }


@pytest.fixture
def encoders() -> Encoders:
    return Encoders()


@pytest_asyncio.fixture
async def api(
    ports: Ports, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    api = connect_api(ports.connect)
    monkeypatch.setattr(ports.port, "ask", encoders.ask)
    yield api
    api.close()


async def test_a_vector_for_each_text(api: Api, encoders: Encoders) -> None:
    assert await api.embed(("a", "b")) == [[0.0, 1.0], [2.0, 3.0]]
    await api.embed(["a"], model="small", dimensions=1, truncate=True, **LATER)
    common = {"name": "encoders.embed"}
    assert encoders.asked == [
        {**common, "texts": ["a", "b"], "model": None, "dimensions": None, "truncate": False}
        | FIRST,
        {**common, "texts": ["a"], "model": "small", "dimensions": 1, "truncate": True} | LATER,
    ]


async def test_a_score_for_each_document(api: Api, encoders: Encoders) -> None:
    assert await api.rerank("q", ("a", "b", "c")) == [0.0, 1.0, 2.0]
    await api.rerank("q", ["a"], model="cross", truncate=True, **LATER)
    common = {"name": "encoders.rerank", "query": "q"}
    assert encoders.asked == [
        {**common, "documents": ["a", "b", "c"], "model": None, "truncate": False} | FIRST,
        {**common, "documents": ["a"], "model": "cross", "truncate": True} | LATER,
    ]


async def test_batches_are_counted_together(api: Api) -> None:
    batches = EncoderBatches()
    await api.embed(["a"], batches=batches)
    await api.rerank("q", ["a"], batches=batches)
    assert batches == EncoderBatches(num_batches=4, num_short_batches=2)


async def test_one_text_is_no_list(api: Api, encoders: Encoders) -> None:
    with pytest.raises(InvalidArgument, match="embed: texts must be a list"):
        await api.embed("text")
    with pytest.raises(InvalidArgument, match="rerank: documents must be a list"):
        await api.rerank("q", "text")
    with pytest.raises(InvalidArgument, match="priority"):
        await api.embed(["a"], priority=0.5)  # type: ignore[arg-type]
    assert not encoders.asked
