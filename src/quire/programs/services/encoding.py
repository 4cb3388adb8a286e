"""One program's access to the node's encoders: under its tenant and its quotas.

Owns the bounds of one request. The node computes the rows (``EncodeTexts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from quire.core.errors import InvalidArgument
from quire.core.ids import ThreadId
from quire.programs.services.operations import ProgramService, operation

MAX_TEXTS = 2048
"""The most texts of one request, as for HTTP."""
MAX_CHARS = 4 << 20
"""The most characters of all texts of one request, a query counted once."""


class CallOrder(NamedTuple):
    """The fields by which a request is ordered among all that wait for a service, as of a queue."""

    thread: ThreadId = ThreadId(0)
    depth: int = 0
    priority: int = 0
    invocation: int = 0
    remaining_us: int = 0


class EncodeTexts(Protocol):
    """The node's encoders for one program; see ``Encode`` of the programming interface for the
    errors. Rows are ``dimensions`` and ``values``: little-endian float32, row by row.
    ``num_batches``: the batches in which they were computed; ``num_short_batches`` of them were
    sent with room in them though others waited."""

    async def encoders(self) -> list[dict[str, Any]]: ...

    async def embed(
        self,
        texts: Sequence[str],
        model: str | None,
        dimensions: int | None,
        truncate: bool,
        order: CallOrder,
    ) -> dict[str, Any]: ...

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        model: str | None,
        truncate: bool,
        order: CallOrder,
    ) -> dict[str, Any]: ...


class EncodingService(ProgramService):
    """``encode`` may be awaited on any loop."""

    def __init__(self, encode: EncodeTexts) -> None:
        self._encode = encode

    @operation("encoders.list")
    async def encoders(self) -> list[dict[str, Any]]:
        return await self._encode.encoders()

    @operation("encoders.embed")
    async def embed(
        self,
        texts: list[str],
        model: str | None,
        dimensions: int | None,
        truncate: bool,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> dict[str, Any]:
        _check("embed", "texts", texts)
        if dimensions is not None and dimensions < 1:
            raise InvalidArgument(f"embed: dimensions is {dimensions}; give 1 or more")
        order = CallOrder(ThreadId(thread), depth, priority, invocation, remaining_us)
        return await self._encode.embed(texts, model, dimensions, truncate, order)

    @operation("encoders.rerank")
    async def rerank(
        self,
        query: str,
        documents: list[str],
        model: str | None,
        truncate: bool,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> dict[str, Any]:
        if not query:
            raise InvalidArgument("rerank: the query is empty")
        _check("rerank", "documents", documents, len(query))
        order = CallOrder(ThreadId(thread), depth, priority, invocation, remaining_us)
        return await self._encode.rerank(query, documents, model, truncate, order)


def _check(function: str, name: str, texts: Sequence[str], num_chars: int = 0) -> None:
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise InvalidArgument(f"{function}: {len(texts)} {name}; give 1 to {MAX_TEXTS} in one call")
    for index, text in enumerate(texts):
        if not text:
            raise InvalidArgument(f"{function}: {name}[{index}] is empty")
        num_chars += len(text)
    if num_chars > MAX_CHARS:
        raise InvalidArgument(
            f"{function}: {num_chars} characters; at most {MAX_CHARS} are allowed in one call: "
            f"split the {name}"
        )
