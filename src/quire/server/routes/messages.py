"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import re
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.node import SessionHandle
from quire.server.answers.frame import new_frame
from quire.server.anthropic.errors import ANTHROPIC_ERRORS, THREAD_NOT_FOUND, error_events
from quire.server.anthropic.format import MessageFormatter
from quire.server.anthropic.translation import chat_request
from quire.server.chat.preparation import prepare_chat, render_chat
from quire.server.context import context_of
from quire.server.errors.errors import HttpError
from quire.server.events import EventStyle, as_it_is
from quire.server.planning import GenerationPlan, begin, told_stream
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.anthropic import (
    AnswerMessage,
    CountTokensRequest,
    MessagesRequest,
    TokenCount,
)
from quire.server.schemas.base import event_responses

router = APIRouter(route_class=StrictRoute, tags=["messages"], responses=ANTHROPIC_ERRORS)

_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
"""The form of a version. Versions of Anthropic's API differ in nothing that is served here."""

_EVENTS = event_responses("message_start, blocks, message_delta, message_stop")
_STYLE = EventStyle(as_it_is, b"", error_events)


@router.post("/v1/messages", response_model=AnswerMessage, responses=_EVENTS)
async def create_message(request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation in Anthropic's format, whole or streamed."""
    _check_version(request)
    _check_thread(body)
    fields = chat_request(body)
    chat = await prepare_chat(request, fields, at_most=body.max_tokens)
    telling = told_stream(request, chat.model)
    frame = new_frame(chat.model) if telling is None else telling.frame
    fills_context = chat.generation.max_tokens < body.max_tokens
    formatter = MessageFormatter(
        frame, len(chat.prompt.token_ids), chat.reading, fills_context=fills_context
    )

    def remember(session: SessionHandle) -> None:
        chat.remember(session, [formatter.answer()])

    plan = GenerationPlan(
        fields, chat.model, [chat.generation], formatter, chat.turns, remember, _STYLE
    )
    return begin(request, replace(plan, telling=telling))


@router.post("/v1/messages/count_tokens", response_model=TokenCount)
async def count_tokens(request: Request, body: CountTokensRequest) -> Response:
    """Count the tokens of a conversation as a prompt, including tools and system prompt."""
    _check_version(request)
    prompt = await render_chat(context_of(request), chat_request(body))
    count = TokenCount(input_tokens=len(prompt.token_ids))
    return Response(count.to_json(), media_type="application/json")


def _check_thread(body: MessagesRequest) -> None:
    if body.thread is not None and body.thread.type == "continue":
        raise HttpError(
            404,
            "no conversation is kept here for thread to continue: send the whole conversation, "
            'with "thread": {"type": "create"} or without',
            code=THREAD_NOT_FOUND,
            param="thread",
        )


def _check_version(request: Request) -> None:
    version = request.headers.get("anthropic-version")
    if version is not None and not _VERSION.fullmatch(version):
        raise HttpError(
            400,
            f"anthropic-version {version[:32]!a} is not a version: send a date such as 2023-06-01",
            code="invalid_argument",
            param="anthropic-version",
        )
