"""Translates the fields of a text completion into a plan of generation, for the routes that take
them.

Owns the meaning of such a request: its prompts as tokens, its grammar, the output that it asks for.
Must not know where the K and V of its prompt come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.requests import Request

from quire.core.decoding import GrammarSpec, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.programs.builtin import CompletionRequest
from quire.server.answers.frame import new_frame
from quire.server.chat.constraint import structured_grammar
from quire.server.completions.format import CompletionsFormatter, CompletionsOptions, EchoedPrompt
from quire.server.context import context_of
from quire.server.errors.prompt_field import prompt_field
from quire.server.grammar_fields import check_grammar
from quire.server.planning import (
    GenerationPlan,
    Reporting,
    check_num_choices,
    completion_request,
    num_kept_tokens,
    request_sampler,
    told_stream,
)
from quire.server.requests.identity import priority_of
from quire.server.requests.plain_text import added_start
from quire.server.schemas.completions import CompletionsRequest

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this route; chat has no default."""

Change = Callable[[CompletionRequest], CompletionRequest]


async def completion_plan(
    request: Request,
    body: CompletionsRequest,
    *,
    num_generated: int = 0,
    change: Change = lambda asked: asked,
) -> GenerationPlan:
    """Return the plan for ``body``. ``num_generated``: how many of its tokens were sampled before.
    ``change``: changes each of its requests.

    Raises:
        QuireError: the model cannot do it; the message says why.
    """
    model = context_of(request).node.model(body.model)
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
    if not num_generated:  # else the prompt is one that was cut, and what followed it
        prompts = [_truncated(prompt, body, model) for prompt in prompts]
    sampler = request_sampler(body, model)
    with prompt_field("prompt"):
        requests = [
            change(_request(body, model, prompt, sampler, grammar, num_generated))
            for prompt in prompts
        ]
    telling = told_stream(request, model)
    frame = new_frame(model) if telling is None else telling.frame
    formatter = CompletionsFormatter(frame, model.tokenizer, prompts, _options(body))
    return GenerationPlan(body, model, requests, formatter, telling=telling)


def _request(
    body: CompletionsRequest,
    model: ServedModel,
    prompt: EchoedPrompt,
    sampler: SamplerSpec,
    grammar: GrammarSpec | None,
    num_generated: int,
) -> CompletionRequest:
    scored = bool(body.echo) and body.logprobs is not None
    max_tokens, min_tokens = body.max_tokens, body.min_tokens or 0
    if num_generated:
        max_tokens = _left(body, num_generated)
        min_tokens = max(min_tokens - num_generated, 0)
    asked = completion_request(
        body,
        model,
        prompt.token_ids,
        max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        sampler=sampler,
        grammar=grammar,
        reporting=Reporting(body.logprobs, body.logprobs if scored else None),
        priority=priority_of(body),
        min_tokens=min_tokens,
    )
    return replace(asked, num_generated=num_generated)


def _left(body: CompletionsRequest, num_generated: int) -> int:
    """Return how many tokens may still be sampled of those that ``body`` asks for."""
    most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if num_generated >= most:
        raise InvalidArgument(
            f"{num_generated} tokens were generated and max_tokens is {most}: nothing is left to "
            "generate",
            param="num_generated",
        )
    return most - num_generated


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
    model: ServedModel, texts: Sequence[str | list[int]], add_special_tokens: bool | None
) -> list[EchoedPrompt]:
    """Return the tokenised prompts. Runs in a thread, because a long text takes time."""
    return [_prompt(model, text, add_special_tokens) for text in texts]


def _prompt(
    model: ServedModel, text: str | list[int], add_special_tokens: bool | None
) -> EchoedPrompt:
    if isinstance(text, str):
        own = model.tokenizer.encode(text)
        start = added_start(model, own, add_special_tokens)
        if not start and not own:
            raise InvalidArgument("a prompt is empty: send at least one token", param="prompt")
        return EchoedPrompt(text, (*start, *own), len(start))
    return replace(_known_prompt(model, text), text=model.tokenizer.decode(text))


def _truncated(prompt: EchoedPrompt, body: CompletionsRequest, model: ServedModel) -> EchoedPrompt:
    """Return the end of ``prompt``, as long as ``truncate_prompt_tokens`` allows."""
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    num_kept = num_kept_tokens(model, body.truncate_prompt_tokens, max_tokens)
    num_cut = 0 if num_kept is None else len(prompt.token_ids) - num_kept
    if num_cut <= 0:
        return prompt
    token_ids = prompt.token_ids[num_cut:]
    num_added = max(0, prompt.num_added - num_cut)
    text = model.tokenizer.decode(token_ids[num_added:]) if body.echo else ""
    return EchoedPrompt(text, token_ids, num_added)


def _known_prompt(model: ServedModel, token_ids: list[int]) -> EchoedPrompt:
    """Return a prompt that was sent as tokens; its text is needed for echoes only."""
    unknown = max(token_ids, default=0)
    if unknown >= model.info.vocab_size:
        raise InvalidArgument(
            f"prompt has token {unknown}, but the model has {model.info.vocab_size} tokens",
            param="prompt",
        )
    return EchoedPrompt("", tuple(token_ids))
