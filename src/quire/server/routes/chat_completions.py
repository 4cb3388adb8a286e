"""``/v1/chat/completions``: answers a conversation."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.node import SessionHandle
from quire.server.answers.frame import new_frame
from quire.server.chat.format import ChatFormatter, ChatOptions
from quire.server.chat.preparation import prepare_chat
from quire.server.microserving.received import with_received
from quire.server.planning import GenerationPlan, begin, told_stream
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.base import event_responses
from quire.server.schemas.chat import ChatCompletion, ChatCompletionRequest

router = APIRouter(route_class=StrictRoute, tags=["chat"])

_EVENTS = event_responses("Events of ChatCompletionChunk objects, then [DONE]")


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=_EVENTS)
async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """Answer a conversation; with `stream` as server-sent events that end with `[DONE]`."""
    chat = await prepare_chat(request, body)
    telling = told_stream(request, chat.model)
    formatter = ChatFormatter(
        new_frame(chat.model) if telling is None else telling.frame,
        chat.model.tokenizer,
        chat.prompt.token_ids,
        _options(body, chat.num_logprobs),
        chat.reading,
    )

    def remember(session: SessionHandle) -> None:
        chat.remember(session, formatter.answers())

    asked = with_received(request, chat.model, chat.generation)
    plan = GenerationPlan(body, chat.model, [asked], formatter, chat.turns, remember)
    return begin(request, replace(plan, telling=telling))


def _options(body: ChatCompletionRequest, num_logprobs: int | None) -> ChatOptions:
    stream = body.stream_options
    return ChatOptions(
        num_choices=body.n or 1,
        num_logprobs=num_logprobs,
        include_reasoning=body.include_reasoning is not False,
        shows_prompt_logprobs=body.prompt_logprobs is not None,
        return_token_ids=bool(body.return_token_ids),
        include_usage=stream is not None and stream.include_usage,
        continuous_usage=stream is not None and stream.continuous_usage_stats,
    )
