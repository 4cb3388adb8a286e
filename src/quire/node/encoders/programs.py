"""The node's encoders for programs: what ``EncodingService`` asks, on the edge's loop.

Owns how many tokens a program has had encoded. Everything that is common with HTTP is in
``requests``; admission, queue and batches are the encoder's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from quire.core.batch import F32
from quire.core.calls import SPARE_PRIORITY
from quire.core.encoding import EncoderKind
from quire.core.errors import EngineLost, NeverWithinQuota
from quire.engine.encoders.text import EncodedText
from quire.node.encoders.asking import BatchCount, OnBehalf
from quire.node.encoders.kept_rows import KeptRows
from quire.node.encoders.requests import (
    check_dimensions,
    pair_sequences,
    shortened,
    text_sequences,
)
from quire.node.encoders.service import EncoderService
from quire.programs.services.encoding import CallOrder
from quire.programs.services.operations import Identity

FindEncoder = Callable[[str | None, EncoderKind], EncoderService]
OnEdge = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""Runs work on the edge's loop and waits for it, from any loop."""


@dataclass(slots=True)
class EncodedTokens:
    """The tokens that one program and its descendants have had encoded. ``limit``: the most;
    ``None``: unbounded. Belongs to the edge's loop."""

    limit: int | None
    parent: EncodedTokens | None = None
    num_tokens: int = 0

    def take(self, num_tokens: int, *, in_spare_time: bool = False) -> None:
        """Count ``num_tokens`` for the program and all its ancestors.

        Work ``in_spare_time`` may turn out not to be needed, so it must not use up a quota.

        Raises:
            NeverWithinQuota: one of them may not have so many more, because what was encoded stays
                counted; in spare time, one of them has a limit at all. Nothing is counted.
        """
        line: list[EncodedTokens] = []
        one: EncodedTokens | None = self
        while one is not None:
            if one.limit is not None and in_spare_time:
                raise NeverWithinQuota(
                    "the program's encoded tokens are bounded, so that it may not have any encoded "
                    "in spare time: ask with a higher priority",
                    max_encoded_tokens=one.limit,
                )
            if one.limit is not None and one.num_tokens + num_tokens > one.limit:
                raise NeverWithinQuota(
                    f"{one.num_tokens} tokens have been encoded and {num_tokens} more are asked "
                    f"for; at most {one.limit} are allowed: encode less, or ask for a larger quota",
                    max_encoded_tokens=one.limit,
                )
            line.append(one)
            one = one.parent
        for counted in line:
            counted.num_tokens += num_tokens


class ProgramEncoders:
    """``EncodeTexts`` of one program. ``services`` are all encoders, ``find`` gives one; ``kept``:
    rows that need not be computed again."""

    def __init__(
        self,
        identity: Identity,
        kept: KeptRows,
        spent: EncodedTokens,
        services: Callable[[], Sequence[EncoderService]],
        find: FindEncoder,
        on_edge: OnEdge,
    ) -> None:
        self._identity = identity
        self._kept = kept
        self._spent = spent
        self._services = services
        self._find = find
        self._on_edge = on_edge

    async def encoders(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._on_edge(self._list())
        return found

    async def embed(
        self,
        texts: Sequence[str],
        model: str | None,
        dimensions: int | None,
        truncate: bool,
        order: CallOrder,
    ) -> dict[str, Any]:
        whose = self._whose(order)
        rows: F32 = await self._on_edge(self._embed(texts, model, dimensions, truncate, whose))
        return await asyncio.to_thread(_packed, rows, dimensions, whose)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        model: str | None,
        truncate: bool,
        order: CallOrder,
    ) -> dict[str, Any]:
        whose = self._whose(order)
        rows: F32 = await self._on_edge(self._rerank(query, documents, model, truncate, whose))
        return _packed(rows, None, whose)

    def _whose(self, order: CallOrder) -> OnBehalf:
        return OnBehalf(self._identity.program, order, BatchCount())

    # -- on the edge's loop ------------------------------------------------------------------------

    async def _list(self) -> list[dict[str, Any]]:
        listed = []
        for service in self._services():
            try:
                info = service.info
            except EngineLost:
                continue
            listed.append(
                {
                    "name": service.name,
                    "kind": info.kind,
                    "dimensions": info.dimensions,
                    "max_tokens": service.texts.max_tokens,
                }
            )
        return listed

    async def _embed(
        self,
        texts: Sequence[str],
        model: str | None,
        dimensions: int | None,
        truncate: bool,
        whose: OnBehalf,
    ) -> F32:
        encoder = self._find(model, "embedding")
        check_dimensions(encoder, dimensions)
        sequences = await text_sequences(encoder, texts, -1 if truncate else None)
        return await self._rows(encoder, sequences, whose)

    async def _rerank(
        self,
        query: str,
        documents: Sequence[str],
        model: str | None,
        truncate: bool,
        whose: OnBehalf,
    ) -> F32:
        encoder = self._find(model, "cross_encoder")
        pairs = await pair_sequences(encoder, [query], documents, -1 if truncate else None)
        return await self._rows(encoder, pairs, whose)

    async def _rows(
        self, encoder: EncoderService, sequences: Sequence[EncodedText], whose: OnBehalf
    ) -> F32:
        num_tokens = sum(len(one.tokens) for one in sequences)
        self._spent.take(num_tokens, in_spare_time=whose.order.priority <= SPARE_PRIORITY)
        return await self._kept.rows(
            self._identity.tenant,
            encoder.name,
            sequences,
            partial(encoder.encode, whose),
            whose.order.priority,
        )


def _packed(rows: F32, dimensions: int | None, whose: OnBehalf) -> dict[str, Any]:
    rows = shortened(rows, dimensions)
    counted = BatchCount() if whose.batches is None else whose.batches
    packed = {"dimensions": rows.shape[1], "values": rows.astype("<f4").tobytes()}
    return packed | asdict(counted)
