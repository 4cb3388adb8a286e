"""Prepares a conversation for the model: the prompt, the grammar, and how the answer is parsed.

Shared by the three conversation APIs (chat completions, responses, messages): each translates its
fields to a ``ChatCompletionRequest`` and formats the answer itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.node import ConversationTurn, SessionHandle
from quire.programs.builtin import CompletionRequest
from quire.programs.chat import Answer, Dialect, dialect_of, marker_tokens
from quire.server.chat.constraint import chat_grammar
from quire.server.chat.conversation import template_messages, turn_of_answer, turns_of
from quire.server.chat.images import ImageReader
from quire.server.chat.parsing import Reading
from quire.server.chat.prompt import ChatPrompt, TemplateInput
from quire.server.context import ServerContext, context_of
from quire.server.errors.prompt_field import prompt_field
from quire.server.grammar_fields import check_grammar
from quire.server.planning import (
    Reporting,
    check_num_choices,
    completion_request,
    num_kept_tokens,
    request_sampler,
)
from quire.server.requests.identity import priority_of
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.tools import NamedToolChoice


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """``turns``: the conversation so far, from which the session is inferred."""

    model: ServedModel
    prompt: ChatPrompt
    generation: CompletionRequest
    reading: Reading
    turns: Sequence[ConversationTurn]
    num_logprobs: int | None

    def remember(self, session: SessionHandle, answers: Sequence[Answer]) -> None:
        """Have a later prompt that continues one of ``answers`` join ``session``."""
        for answer in answers:
            session.remember(self.turns, turn_of_answer(answer))


async def prepare_chat(
    request: Request, body: ChatCompletionRequest, *, at_most: int | None = None
) -> PreparedChat:
    """Render ``body``'s conversation and decide how its answer is generated.

    ``at_most``: if ``body`` has no limit, the limit in tokens; fewer if the context holds fewer.

    Raises:
        QuireError: no such model, a conversation that its template refuses, a grammar that does not
            compile, a prompt that is too long, or fields that the model does not support.
    """
    context = context_of(request)
    body = body.with_allowed_tools()
    model = context.node.model(body.model)
    check_num_choices(1, body.n or 1)
    images = ImageReader(model.info.images)
    messages = template_messages(body.messages, images)
    grammar, source = chat_grammar(body)
    if grammar is not None:
        await check_grammar(request, grammar, source)
    conversation = _conversation(body, messages, images.files)
    with prompt_field("messages"):
        prompt = await context.renderer.render(model, conversation)
    prompt = _truncated(prompt, body, model)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    # a forced call always has the format of the grammar
    dialect = dialect_of(model) if grammar is None else Dialect.HERMES
    tools = frozenset(tool.function.name for tool in body.tools or ())
    reading = Reading(
        _max_calls(body),
        prompt.opens_reasoning,
        dialect,
        tools,
        drops_calls=bool(tools) and body.tool_choice == "none",
    )
    with prompt_field("messages"):
        generation = completion_request(
            body,
            model,
            prompt.token_ids,
            body.limit(),
            default_max_tokens=_default_max_tokens(model) if at_most is None else at_most,
            sampler=request_sampler(body, model),
            grammar=grammar,
            reporting=Reporting(num_logprobs, body.prompt_logprobs),
            priority=priority_of(body),
            images=prompt.images,
            shown_special=marker_tokens(dialect, model.tokenizer, tools=reading.finds_calls),
        )
    return PreparedChat(model, prompt, generation, reading, turns_of(messages), num_logprobs)


def _truncated(prompt: ChatPrompt, body: ChatCompletionRequest, model: ServedModel) -> ChatPrompt:
    """Return the end of ``prompt``, as long as ``truncate_prompt_tokens`` allows."""
    num_kept = num_kept_tokens(model, body.truncate_prompt_tokens, body.limit() or 0)
    if num_kept is None or len(prompt.token_ids) <= num_kept:
        return prompt
    if prompt.images:
        raise InvalidArgument(
            "truncate_prompt_tokens could cut an image in two: leave it out of prompts with images",
            param="truncate_prompt_tokens",
        )
    return replace(prompt, token_ids=prompt.token_ids[-num_kept:])


async def render_chat(context: ServerContext, body: ChatCompletionRequest) -> ChatPrompt:
    """Return the prompt of ``body``'s conversation, without anything else.

    Raises:
        QuireError: no such model, or a conversation that its template refuses.
    """
    model = context.node.model(body.model)
    images = ImageReader(model.info.images)
    messages = template_messages(body.messages, images)
    return await context.renderer.render(model, _conversation(body, messages, images.files))


def _conversation(
    body: ChatCompletionRequest, messages: list[dict[str, object]], images: Sequence[bytes]
) -> TemplateInput:
    """Return the input of the template. With ``tool_choice`` none the model does not see the tools,
    so that it calls none."""
    tools = body.tools if body.tool_choice != "none" else None
    variables = dict(body.chat_template_kwargs or {})
    for name in ("reasoning_effort", "verbosity"):
        if (value := getattr(body, name)) is not None:
            variables.setdefault(name, value)
    going_on = bool(body.continue_final_message)
    return TemplateInput(
        messages,
        tools=[tool.model_dump(exclude_none=True) for tool in tools] if tools else None,
        add_generation_prompt=body.add_generation_prompt is not False and not going_on,
        continue_final_message=going_on,
        variables=variables,
        images=images,
        documents=body.documents,
        add_special_tokens=bool(body.add_special_tokens),
    )


def _max_calls(body: ChatCompletionRequest) -> int | None:
    if not body.tools or body.tool_choice == "none":
        return 0
    one = body.parallel_tool_calls is False or isinstance(body.tool_choice, NamedToolChoice)
    return 1 if one else None


def _default_max_tokens(model: ServedModel) -> int | None:
    default = model.defaults.get("max_new_tokens")
    return default if isinstance(default, int) else None
