"""Embedding models and cross-encoders of the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.encoding import EncoderKind
from quire.core.errors import ModelNotFound
from quire.programs.api import Api
from quire.programs.services.encoding import MAX_TEXTS
from quire.programs.workflow.engines import Engine
from quire.programs.workflow.primitives import Op, Primitive
from quire.programs.workflow.scheduler import check_elements

ENCODER_KINDS: Mapping[str, EncoderKind] = {"embedding": "embedding", "rerank": "cross_encoder"}
"""The kind of the node's encoders that carries out each kind of engine."""


_EXAMPLES: Mapping[EncoderKind, str] = {
    "embedding": " such as sentence-transformers/all-MiniLM-L6-v2",
    "cross_encoder": " such as cross-encoder/ms-marco-MiniLM-L6-v2; with "
    "--encoder late-interaction:SOURCE an embedding model takes its place",
}


async def check_encoders(api: Api, engines: Sequence[Engine]) -> None:
    """Refuse a query before any work if the node lacks an encoder that it needs.

    Raises:
        ModelNotFound: there is none of the kind, or none of the name that an engine gives.
    """
    wanted = [engine for engine in engines if engine.kind in ENCODER_KINDS]
    served = await api.available_encoders() if wanted else []
    for engine in wanted:
        kind, model = ENCODER_KINDS[engine.kind], engine.config.get("model")
        if not any(one.kind == kind and model in (None, one.name) for one in served):
            known = ", ".join(f"{one.name} ({one.kind})" for one in served) or "no encoder"
            raise _lacking(engine, known)


def check_some_encoder(engines: Sequence[Engine]) -> None:
    """Refuse a query before its node is started, if that is to have no encoder at all.

    Raises:
        ModelNotFound: an engine needs one.
    """
    for engine in engines:
        if engine.kind in ENCODER_KINDS:
            raise _lacking(engine, "no encoder")


def _lacking(engine: Engine, known: str) -> ModelNotFound:
    kind, model = ENCODER_KINDS[engine.kind], engine.config.get("model")
    what = kind.replace("_", " ") + (f" named {model!r}" if model else "")
    return ModelNotFound(
        f"engine {engine.name!r} needs a model of kind {what}, and the node has {known}: load one "
        f"with --encoder SOURCE, a directory or hub id{_EXAMPLES[kind]}"
    )


class EncoderRunner:
    """``Runner`` of an engine of kind embedding or rerank; ``model``: None for the node's first of
    that kind."""

    def __init__(self, api: Api, model: str | None) -> None:
        self._api, self._model = api, model

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        is_ranking = primitive.op is Op.RERANKING
        return {"out": await (self._ranked if is_ranking else self._embedded)(primitive, inputs)}

    async def close(self) -> None:
        """Nothing is held."""

    async def _embedded(self, primitive: Primitive, inputs: Mapping[str, Any]) -> list[list[float]]:
        texts: list[str] = [inputs["text"]] if "text" in inputs else inputs["texts"]
        rows: list[list[float]] = []
        for start in range(0, len(texts), MAX_TEXTS):
            rows += await self._api.embed(
                texts[start : start + MAX_TEXTS],
                model=self._model,
                truncate=primitive.config["truncate"],
                **primitive.order,
            )
        check_elements(primitive, rows)
        return rows

    async def _ranked(self, primitive: Primitive, inputs: Mapping[str, Any]) -> list[str]:
        """Each text is ranked once; it is repeated only if there are too few others."""
        given: list[str] = inputs["texts"]
        texts = list(dict.fromkeys(given))
        if not texts:
            return []
        scores = await self._api.rerank(
            inputs["text"],
            texts,
            model=self._model,
            truncate=primitive.config["truncate"],
            **primitive.order,
        )
        order = sorted(range(len(texts)), key=lambda place: -scores[place])
        ranked = [texts[place] for place in order]
        repeated = [text for place, text in enumerate(given) if text in given[:place]]
        return [*ranked, *repeated][: primitive.config["top_n"]]
