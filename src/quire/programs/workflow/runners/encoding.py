"""Embedding models and cross-encoders of the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from quire.core.encoding import EncoderKind
from quire.core.errors import InvalidArgument, ModelNotFound
from quire.programs.api import Api
from quire.programs.api.encode import Encoder, EncoderBatches, embedded
from quire.programs.api.packed_vectors import PackedVectors
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.execution.scheduler import check_elements
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.values import ValueType, joined
from quire.programs.workflow.speculation import Run
from quire.programs.workflow.template.node import Node

ENCODER_KINDS: Mapping[str, EncoderKind] = {"embedding": "embedding", "rerank": "cross_encoder"}
"""The kind of the node's encoders that serves each kind of engine."""


_EXAMPLES: Mapping[EncoderKind, str] = {
    "embedding": " such as sentence-transformers/all-MiniLM-L6-v2",
    "cross_encoder": " such as cross-encoder/ms-marco-MiniLM-L6-v2; with "
    "--encoder late-interaction:SOURCE an embedding model takes its place",
}

MAX_IN_FLIGHT = 1024
"""The most texts of one query that an encoder has at a time. A tenant may have 8192 waiting, and a
query 65,536 chunks, which the optimiser sends side by side."""
MAX_SCORES = 65_536
"""The most scores that a query keeps, the latest: as many as it may have chunks."""
NUM_AHEAD = 8
"""The number of texts that are scored at a time in spare time."""


async def check_encoders(api: Api, engines: Sequence[Engine], nodes: Sequence[Node]) -> None:
    """Refuse a query of the components ``nodes`` before any work if the node's encoders are not
    those that it needs.

    Raises:
        ModelNotFound: there is none of the kind, or none with the name that an engine gives.
        InvalidArgument: vectors of one store have different dimensions.
    """
    if any(engine.kind in ENCODER_KINDS for engine in engines):
        served = await api.available_encoders()
        check_kinds(engines, [(one.name, one.kind) for one in served])
        _check_dimensions({engine.name: engine for engine in engines}, nodes, served)


def _check_dimensions(
    engines: Mapping[str, Engine], nodes: Sequence[Node], served: Sequence[Encoder]
) -> None:
    """Refuse components of one store whose vectors are of models with different dimensions."""
    kinds = {name: engine.kind for name, engine in engines.items()}
    makers = {name: node for node in nodes for name in node.outputs}
    first: dict[str, tuple[str, Encoder]] = {}
    for node in nodes:
        for name, kind in node.inputs.items():
            maker = makers.get(name)
            if kind is not ValueType.VECTORS or kinds.get(node.engine) != "vectors":
                continue
            if maker is None or kinds.get(maker.engine) != "embedding":
                continue
            model = engines[maker.engine].config.get("model")
            encoder = next(
                one for one in served if one.kind == "embedding" and model in (None, one.name)
            )
            other, known = first.setdefault(node.engine, (node.name, encoder))
            if known.dimensions != encoder.dimensions:
                raise InvalidArgument(
                    f"{node.name} takes vectors of {encoder.name} ({encoder.dimensions} "
                    f"dimensions), and {other} those of {known.name} ({known.dimensions}): use one "
                    "embedding model for ingestion and search",
                    param=f"{node.name}.inputs.{name}",
                )


def check_kinds(engines: Sequence[Engine], served: Sequence[tuple[str, EncoderKind]]) -> None:
    """Refuse a query that needs an encoder beside those of ``served``, names and kinds.

    Raises:
        ModelNotFound: see ``check_encoders``.
    """
    for engine in engines:
        if engine.kind not in ENCODER_KINDS:
            continue
        kind, model = ENCODER_KINDS[engine.kind], engine.config.get("model")
        if not any(of == kind and model in (None, name) for name, of in served):
            known = ", ".join(f"{name} ({of})" for name, of in served) or "no encoder"
            raise _lacking(engine, known)


def _lacking(engine: Engine, known: str) -> ModelNotFound:
    kind, model = ENCODER_KINDS[engine.kind], engine.config.get("model")
    what = kind.replace("_", " ") + (f" named {model!r}" if model else "")
    return ModelNotFound(
        f"engine {engine.name!r} needs a model of kind {what}, and the node has {known}: load one "
        f"with --encoder SOURCE, a directory or hub id{_EXAMPLES[kind]}"
    )


class EncoderRunner:
    """``PrimitiveRunner`` of an engine of kind embedding or rerank. ``model``: None for the node's
    first of that kind. ``batches``: counts the batches of each primitive, by its id."""

    def __init__(
        self, api: Api, model: str | None, batches: dict[str, EncoderBatches] | None = None
    ) -> None:
        self._api, self._model = api, model
        self._batches = {} if batches is None else batches
        self._room = _Room()
        self._scores: dict[bytes, float] = {}
        """The latest scores of texts that were found or may be, by ``_digest``."""

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        is_ranking = primitive.op is Op.RERANKING
        return {"out": await (self._scored if is_ranking else self._embedded)(primitive, inputs)}

    async def close(self) -> None:
        """Do nothing: it holds nothing."""

    async def run_ahead(self, run: Run) -> Mapping[str, Any]:
        """See ``AheadRunner``. Score a few texts at a time, so that their scores stay if the run is
        dropped."""
        texts: list[str] = run.inputs["texts"]
        for start in range(0, len(texts), NUM_AHEAD):
            some = {**run.inputs, "texts": texts[start : start + NUM_AHEAD]}
            await self._scored(run.primitive, some)
        return {"out": await self._scored(run.primitive, run.inputs)}

    def keep(self, run: Run) -> None:
        """Do nothing: the scores are stored already."""

    def drop(self, run: Run) -> int:
        return 0

    async def _embedded(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
        """Return the vectors packed: a query may have 65,536 of them."""
        texts: list[str] = [inputs["text"]] if "text" in inputs else inputs["texts"]
        parts: list[PackedVectors] = []
        for start in range(0, len(texts), MAX_IN_FLIGHT):
            some = texts[start : start + MAX_IN_FLIGHT]
            async with self._room.of(len(some)):
                part = await embedded(
                    self._api.issuer,
                    some,
                    model=self._model,
                    truncate=primitive.config["truncate"],
                    batches=self._batches.setdefault(primitive.id, EncoderBatches()),
                    order=primitive.order,
                )
            parts.append(part)
        rows = joined(parts)
        check_elements(primitive, rows)
        return rows

    async def _scored(self, primitive: Primitive, inputs: Mapping[str, Any]) -> list[float]:
        """Score each text once, however often and by however many searches it was found."""
        question: str = inputs["text"]
        truncate: bool = primitive.config["truncate"]
        digests = {text: _digest(truncate, question, text) for text in inputs["texts"]}
        found = {text: self._scores[one] for text, one in digests.items() if one in self._scores}
        missing = [text for text in digests if text not in found]
        for start in range(0, len(missing), MAX_IN_FLIGHT):
            some = missing[start : start + MAX_IN_FLIGHT]
            async with self._room.of(len(some)):
                scores = await self._api.rerank(
                    question,
                    some,
                    model=self._model,
                    truncate=truncate,
                    batches=self._batches.setdefault(primitive.id, EncoderBatches()),
                    **primitive.order,
                )
            for text, score in zip(some, scores, strict=True):
                found[text] = self._scores[digests[text]] = score
        while len(self._scores) > MAX_SCORES:
            del self._scores[next(iter(self._scores))]
        return [found[text] for text in inputs["texts"]]


def _digest(truncate: bool, question: str, text: str) -> bytes:
    """A digest of what a score follows from: a query need not keep the texts."""
    return blake2b(repr((truncate, question, text)).encode(), digest_size=16).digest()


class _Room:
    """Room for ``MAX_IN_FLIGHT`` texts of one query at its encoder."""

    def __init__(self) -> None:
        self._num_texts = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, num_texts: int) -> AsyncIterator[None]:
        """Wait for room for ``num_texts``, and hold it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._num_texts + num_texts <= MAX_IN_FLIGHT)
            self._num_texts += num_texts
        try:
            yield
        finally:
            self._num_texts -= num_texts
            async with self._changed:
                self._changed.notify_all()
