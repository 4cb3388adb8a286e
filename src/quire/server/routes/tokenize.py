"""``/tokenize`` and ``/detokenize``: text to token ids, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.server.answers.logprobs import spelled
from quire.server.chat.tokens import tokens_of
from quire.server.context import context_of
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.service import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
)

router = APIRouter(route_class=StrictRoute, tags=["tokenize"])

_MAX_AT_ONCE = 1024
"""Tokens whose answer is made on the loop; the answer of more is made in a thread."""


@router.post("/tokenize", response_model=Tokenized)
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a prompt, or of chat messages rendered with the model's chat template."""
    context = context_of(request)
    model = context.node.model(body.model)
    tokens = await tokens_of(context.renderer, model, body)
    made = partial(_body, model, tokens, spells=bool(body.return_token_strs))
    # a text of megabytes has as many tokens, which take seconds to spell
    content = await asyncio.to_thread(made) if len(tokens) > _MAX_AT_ONCE else made()
    return Response(content, media_type="application/json")


def _body(model: ServedModel, tokens: Sequence[int], *, spells: bool) -> bytes:
    answer = Tokenized(
        count=len(tokens), max_model_len=model.info.max_model_len, tokens=list(tokens)
    )
    if spells:
        answer.token_strs = [spelled(model.tokenizer, token)[0] for token in tokens]
    return answer.to_json()


@router.post("/detokenize", response_model=Detokenized)
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """The text of token ids, special tokens included."""
    model = context_of(request).node.model(body.model)
    highest = max(body.tokens, default=0)
    if highest >= model.info.vocab_size:
        raise InvalidArgument(
            f"tokens has token {highest}, but the model has {model.info.vocab_size} tokens",
            param="tokens",
        )
    text = await asyncio.to_thread(model.tokenizer.decode, body.tokens)
    return Response(Detokenized(prompt=text).to_json(), media_type="application/json")
