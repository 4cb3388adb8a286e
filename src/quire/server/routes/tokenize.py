"""``/tokenize`` and ``/detokenize``: text to token ids, and back."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.server.chat.conversation import template_messages
from quire.server.chat.images import ImageReader
from quire.server.chat.prompt import TemplateInput
from quire.server.context import ServerContext, context_of
from quire.server.logprobs import spelled
from quire.server.plain_text import text_tokens
from quire.server.schemas.service import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
)
from quire.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["tokenize"])


@router.post("/tokenize", response_model=Tokenized)
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a prompt, or of chat messages rendered with the model's chat template."""
    context = context_of(request)
    model = context.node.model(body.model)
    tokens = await _tokens(context, model, body)
    answer = Tokenized(
        count=len(tokens), max_model_len=model.info.max_model_len, tokens=list(tokens)
    )
    if body.return_token_strs:
        answer.token_strs = [spelled(model.tokenizer, token)[0] for token in tokens]
    return Response(answer.to_json(), media_type="application/json")


async def _tokens(
    context: ServerContext, model: ServedModel, body: TokenizeRequest
) -> tuple[int, ...]:
    if body.messages is None:
        text, special = body.prompt or "", body.add_special_tokens
        return tuple(await asyncio.to_thread(text_tokens, model, text, special))
    images = ImageReader(model.info.images)
    conversation = TemplateInput(
        template_messages(body.messages, images),
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools] if body.tools else None,
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs or {},
        images=images.files,
    )
    return (await context.renderer.render(model, conversation)).token_ids


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
