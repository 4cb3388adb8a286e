"""``/v1/embeddings``, ``/v1/rerank`` and ``/v1/score``: texts through the node's encoders.

Clients of Cohere's and Jina's services, and of vLLM, use other paths for the last two as well.
"""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.core.batch import F32
from quire.engine.encoders.text import EncodedText
from quire.node.encoders.requests import (
    check_dimensions,
    pair_sequences,
    shortened,
    text_sequences,
)
from quire.server.context import context_of
from quire.server.encoding import rows_of
from quire.server.errors.prompt_field import pair_fields, prompt_field
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.encoding import (
    EmbeddingList,
    EmbeddingsRequest,
    RerankList,
    RerankRequest,
    ScoreList,
    ScoreRequest,
)

router = APIRouter(route_class=StrictRoute, tags=["encoders"])


@router.post("/v1/embeddings", response_model=EmbeddingList)
async def create_embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """A vector for each text or sequence of token ids."""
    encoder = context_of(request).node.encoder(body.model, "embedding")
    check_dimensions(encoder, body.dimensions)
    with prompt_field("input"):
        sequences = await text_sequences(
            encoder, body.inputs(), body.truncate_prompt_tokens, body.prompt_name
        )
    rows = await rows_of(request, encoder, sequences)
    answer = {
        "object": "list",
        "data": await asyncio.to_thread(_embeddings, rows, body),
        "model": encoder.name,
        "usage": _usage(sequences),
    }
    return _json(answer)


@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/v1/rerank", response_model=RerankList)
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Documents in the order of their relevance to a query, best first."""
    texts = body.texts()
    with pair_fields("query", "documents", is_list=True):
        scores, sequences, model = await _scores(request, body, [body.query], texts)
    order = np.argsort(-scores, kind="stable")[: body.top_n]
    results: list[dict[str, Any]] = []
    for index in order.tolist():
        result: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        if body.return_documents is not False:
            result["document"] = {"text": texts[index]}
        results.append(result)
    answer = {"id": _new_id("rerank"), "model": model, "results": results}
    return _json({**answer, "usage": _usage(sequences)})


@router.post("/score", include_in_schema=False)
@router.post("/v1/score", response_model=ScoreList)
async def score(request: Request, body: ScoreRequest) -> Response:
    """Score pairs of texts, in the order of the request."""
    with pair_fields("text_1", "text_2", is_list=isinstance(body.text_2, list)):
        scores, sequences, model = await _scores(request, body, *body.lists())
    answer = {
        "id": _new_id("score"),
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"object": "score", "index": index, "score": value}
            for index, value in enumerate(scores.tolist())
        ],
        "usage": _usage(sequences),
    }
    return _json(answer)


async def _scores(
    request: Request, body: RerankRequest | ScoreRequest, first: list[str], second: list[str]
) -> tuple[F32, list[EncodedText], str]:
    """Return the score of each pair; one ``first`` is paired with every ``second``."""
    encoder = context_of(request).node.encoder(body.model, "cross_encoder")
    sequences = await pair_sequences(
        encoder, first, second, body.truncate_prompt_tokens, body.instruction
    )
    rows = await rows_of(request, encoder, sequences)
    return rows[:, 0], sequences, encoder.name


def _embeddings(rows: F32, body: EmbeddingsRequest) -> list[msgspec.Raw]:
    """Encode the rows, one by one in a thread: two million numbers take as long to write as several
    steps of a model, and one call would hold the interpreter's lock and so block the event loop."""
    rows = shortened(rows, body.dimensions)
    as_text = body.encoding_format == "base64"
    return [
        msgspec.Raw(
            msgspec.json.encode(
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _base64(row) if as_text else row.tolist(),
                }
            )
        )
        for index, row in enumerate(rows)
    ]


def _base64(row: F32) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _usage(sequences: Sequence[EncodedText]) -> dict[str, int]:
    num_tokens = sum(len(one.tokens) for one in sequences)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def _json(answer: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
