"""Embedding models and cross-encoders of the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.programs.api import Api
from quire.programs.services.encoding import MAX_TEXTS
from quire.programs.workflow.primitives import Op, Primitive
from quire.programs.workflow.scheduler import check_elements


class EncoderRunner:
    """``Runner`` of an engine of kind embedding or rerank; ``model``: None for the node's first of
    that kind."""

    def __init__(self, api: Api, model: str | None) -> None:
        self._api, self._model = api, model

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        is_ranking = primitive.op is Op.RERANKING
        return {"out": await (self._ranked if is_ranking else self._embedded)(primitive, inputs)}

    def close(self) -> None:
        """Nothing is held."""

    async def _embedded(self, primitive: Primitive, inputs: Mapping[str, Any]) -> list[list[float]]:
        texts: list[str] = [inputs["text"]] if "text" in inputs else inputs["texts"]
        rows: list[list[float]] = []
        for start in range(0, len(texts), MAX_TEXTS):
            rows += await self._api.embed(
                texts[start : start + MAX_TEXTS],
                model=self._model,
                truncate=primitive.config["truncate"],
                depth=primitive.depth,
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
            depth=primitive.depth,
        )
        order = sorted(range(len(texts)), key=lambda place: -scores[place])
        ranked = [texts[place] for place in order]
        repeated = [text for place, text in enumerate(given) if text in given[:place]]
        return [*ranked, *repeated][: primitive.config["top_n"]]
