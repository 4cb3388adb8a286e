"""Trait Encode: vectors and relevance scores of texts. Served by the node's encoders."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.encoding import EncoderKind
from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.integers import call_order
from quire.programs.api.issuer import Issuer
from quire.programs.api.packed_vectors import PackedVectors
from quire.programs.api.queued import TraitFunctions


@dataclass(frozen=True, slots=True)
class Encoder:
    """One encoder of the node. ``dimensions``: the length of its vectors (1: a score).
    ``max_tokens``: the longest text, or query and document together, special tokens included."""

    name: str
    kind: EncoderKind
    dimensions: int
    max_tokens: int


@dataclass(slots=True)
class EncoderBatches:
    """In how many batches an encoder has computed texts, and how many of these were short: sent
    with room in them, though others waited. A text that the node had encoded before is in none."""

    num_batches: int = 0
    num_short_batches: int = 0


class EncodeFunctions(TraitFunctions):
    trait = Trait.ENCODE

    async def available_encoders(self) -> list[Encoder]:
        """The loaded encoders, in the order of the configuration; may be empty."""
        found: list[dict[str, Any]] = await self._issuer.ask("encoders.list")
        return [Encoder(**one) for one in found]

    async def embed(
        self,
        texts: Sequence[str],
        *,
        model: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
        batches: EncoderBatches | None = None,
    ) -> list[list[float]]:
        """A vector for each of ``texts``, as from ``/v1/embeddings``: [texts, dimensions].

        ``model``: an embedding model of the node (default: the first). ``dimensions``: return only
        that many leading values, normalised to length 1, for models that were trained for it.
        ``truncate``: truncate texts that are longer than the model reads. ``thread``, ``depth`` and
        ``priority``: as of a queue (``create_queue``); ``invocation`` and ``remaining_us``: as of
        ``set_queue_depth``. ``batches``: an ``EncoderBatches`` (``quire.programs.api.encode``); the
        batches in which the texts were computed are added to its ``num_batches``, and those that
        were sent with room in them, though others waited, to ``num_short_batches`` as well.
        Cancelling the wait cancels what is not computed yet.

        Raises:
            ModelNotFound: the node has no such embedding model, or none at all.
            EngineLost: the encoder is being loaded, was lost, or is given up.
            PromptTooLong: a text is longer than the model reads.
            InvalidArgument: no texts, over 2048 texts or 4 Mi characters, an empty text, more
                dimensions than the model has, or a model of another kind.
            QuotaExceeded: over ``max_encoded_tokens``, or too many texts of the tenant wait.
        """
        order = call_order(thread, depth, priority, invocation, remaining_us)
        packed = await embedded(
            self._issuer,
            texts,
            model=model,
            dimensions=dimensions,
            truncate=truncate,
            batches=batches,
            order=order,
        )
        return list(packed)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        model: str | None = None,
        truncate: bool = False,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
        batches: EncoderBatches | None = None,
    ) -> list[float]:
        """The relevance of each of ``documents`` to ``query``, in their order: the scores of
        ``/v1/rerank``.

        ``model``: a cross-encoder of the node (default: the first). ``truncate``: truncate
        documents that are too long, never the query. Errors as for ``embed``.
        """
        rows = await self._issuer.ask(
            "encoders.rerank",
            query=query,
            documents=_listed("rerank", "documents", documents),
            model=model,
            truncate=truncate,
            **call_order(thread, depth, priority, invocation, remaining_us),
        )
        _count(batches, rows)
        return [score for (score,) in _vectors(rows)]


async def embedded(
    issuer: Issuer,
    texts: Sequence[str],
    *,
    order: Mapping[str, int],
    model: str | None = None,
    dimensions: int | None = None,
    truncate: bool = False,
    batches: EncoderBatches | None = None,
) -> PackedVectors:
    """``EncodeFunctions.embed`` without a Python object for each number. ``order``: the arguments
    from ``thread`` to ``remaining_us``."""
    rows = await issuer.ask(
        "encoders.embed",
        texts=_listed("embed", "texts", texts),
        model=model,
        dimensions=dimensions,
        truncate=truncate,
        **order,
    )
    _count(batches, rows)
    return _vectors(rows)


def _listed(function: str, name: str, texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise InvalidArgument(f"{function}: {name} must be a list of texts, not one text")
    return list(texts)


def _count(batches: EncoderBatches | None, rows: dict[str, Any]) -> None:
    if batches is not None:
        batches.num_batches += rows["num_batches"]
        batches.num_short_batches += rows["num_short_batches"]


def _vectors(rows: dict[str, Any]) -> PackedVectors:
    values = rows["values"]
    # answers to a sandboxed program are JSON, with bytes as base64
    flat = base64.b64decode(values) if isinstance(values, str) else values
    return PackedVectors(flat, rows["dimensions"])
