"""``/v1/completions``: continues texts or token ids."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.server.chat.constraint import structured_grammar
from quire.server.completions_format import CompletionsFormatter, CompletionsOptions, PromptText
from quire.server.context import context_of
from quire.server.frame import new_frame
from quire.server.grammar_fields import check_grammar
from quire.server.identity import priority_of
from quire.server.plain_text import added_start
from quire.server.planning import Reporting, Work, begin, check_num_choices, completion_request
from quire.server.schemas.base import Responses
from quire.server.schemas.completions import Completion, CompletionsRequest
from quire.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["completions"])

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this route; chat has no default."""

_EVENTS: Responses = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.post("/v1/completions", response_model=Completion, responses=_EVENTS)
async def create_completion(request: Request, body: CompletionsRequest) -> Response:
    """Continue each prompt; with `stream` as server-sent events that end with `[DONE]`."""
    context = context_of(request)
    model = context.node.model(body.model)
    texts = body.prompts()
    check_num_choices(len(texts), body.n or 1)
    grammar = None
    if body.structured_outputs is not None:
        grammar = structured_grammar(body.structured_outputs)
        await check_grammar(request, grammar, "structured_outputs")
    if body.echo or any(isinstance(text, str) for text in texts):
        prompts = await asyncio.to_thread(_prompts, model, texts, body.add_special_tokens)
    else:
        prompts = [_known_prompt(model, text) for text in texts if not isinstance(text, str)]
    scored = bool(body.echo) and body.logprobs is not None
    priority = priority_of(body)
    requests = [
        completion_request(
            body,
            model,
            prompt.token_ids,
            body.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            grammar=grammar,
            reporting=Reporting(body.logprobs, body.logprobs if scored else None),
            priority=priority,
        )
        for prompt in prompts
    ]
    formatter = CompletionsFormatter(new_frame(model), model.tokenizer, prompts, _options(body))
    return begin(request, Work(body, model, requests, formatter))


def _options(body: CompletionsRequest) -> CompletionsOptions:
    stream = body.stream_options
    return CompletionsOptions(
        num_choices=body.n or 1,
        echo=bool(body.echo),
        num_logprobs=body.logprobs,
        shows_special=body.skip_special_tokens is False,
        return_token_ids=bool(body.return_token_ids),
        include_usage=stream is not None and stream.include_usage,
        continuous_usage=stream is not None and stream.continuous_usage_stats,
    )


def _prompts(
    model: ServedModel, texts: list[str | list[int]], add_special_tokens: bool | None
) -> list[PromptText]:
    """Tokenised prompts. Runs in a thread, because a long text takes time."""
    return [_prompt(model, text, add_special_tokens) for text in texts]


def _prompt(
    model: ServedModel, text: str | list[int], add_special_tokens: bool | None
) -> PromptText:
    if isinstance(text, str):
        own = model.tokenizer.encode(text)
        start = added_start(model, own, add_special_tokens)
        if not start and not own:
            raise InvalidArgument("a prompt is empty: send at least one token", param="prompt")
        return PromptText(text, (*start, *own), len(start))
    return replace(_known_prompt(model, text), text=model.tokenizer.decode(text))


def _known_prompt(model: ServedModel, token_ids: list[int]) -> PromptText:
    """A prompt that was sent as tokens; its text is needed for echoes only."""
    unknown = max(token_ids, default=0)
    if unknown >= model.info.vocab_size:
        raise InvalidArgument(
            f"prompt has token {unknown}, but the model has {model.info.vocab_size} tokens",
            param="prompt",
        )
    return PromptText("", tuple(token_ids))
