"""``/v1/chat/completions``: a conversation in, its next message out."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.core.interfaces import ServedModel
from quire.node import SessionHandle
from quire.server.chat.constraint import chat_grammar
from quire.server.chat.conversation import template_messages, turn_of_answer, turns_of
from quire.server.chat.format import ChatFormatter, ChatOptions
from quire.server.chat.parsing import Reading
from quire.server.chat.prompt import Conversation
from quire.server.context import context_of
from quire.server.frame import new_frame
from quire.server.identity import identify
from quire.server.planning import Reporting, Work, begin, check_num_choices, completion_request
from quire.server.schemas.base import Responses
from quire.server.schemas.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from quire.server.schemas.tools import NamedToolChoice
from quire.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["chat"])

_EVENTS: Responses = {
    200: {
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "description": "Events of ChatCompletionChunk objects, then [DONE]",
            }
        }
    }
}


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=_EVENTS)
async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """Answer a conversation; with `stream` as server-sent events that end with `[DONE]`."""
    context = context_of(request)
    model = context.node.model(body.model)
    check_num_choices(1, body.n or 1)
    messages = template_messages(body.messages)
    grammar, source = chat_grammar(body)
    if grammar is not None:
        await context.grammars.check(grammar, param=source)
    prompt = await context.renderer.render(model, _conversation(body, messages))
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    generation = completion_request(
        body,
        model,
        prompt.token_ids,
        body.limit(),
        default_max_tokens=_default_max_tokens(model),
        grammar=grammar,
        reporting=Reporting(num_logprobs),
        priority=identify(request.headers, body).priority,
    )
    reading = Reading(_max_calls(body), prompt.opens_reasoning)
    options = _options(body, num_logprobs)
    formatter = ChatFormatter(new_frame(model), model.tokenizer, prompt.token_ids, options, reading)
    turns = turns_of(messages)

    def remember(session: SessionHandle) -> None:
        for answer in formatter.answers():
            session.remember(turns, turn_of_answer(answer))

    return begin(request, Work(body, model, [generation], formatter, turns, remember))


def _conversation(body: ChatCompletionRequest, messages: list[dict[str, object]]) -> Conversation:
    """With ``tool_choice`` none the model is not told of the tools, so that it calls none."""
    tools = body.tools if body.tool_choice != "none" else None
    variables = dict(body.chat_template_kwargs or {})
    for name in ("reasoning_effort", "verbosity"):
        if (value := getattr(body, name)) is not None:
            variables.setdefault(name, value)
    going_on = bool(body.continue_final_message)
    return Conversation(
        messages,
        tools=[tool.model_dump(exclude_none=True) for tool in tools] if tools else None,
        add_generation_prompt=body.add_generation_prompt is not False and not going_on,
        continue_final_message=going_on,
        variables=variables,
    )


def _max_calls(body: ChatCompletionRequest) -> int | None:
    if not body.tools or body.tool_choice == "none":
        return 0
    one = body.parallel_tool_calls is False or isinstance(body.tool_choice, NamedToolChoice)
    return 1 if one else None


def _default_max_tokens(model: ServedModel) -> int | None:
    default = model.defaults.get("max_new_tokens")
    return default if isinstance(default, int) else None


def _options(body: ChatCompletionRequest, num_logprobs: int | None) -> ChatOptions:
    stream = body.stream_options
    return ChatOptions(
        num_choices=body.n or 1,
        num_logprobs=num_logprobs,
        return_token_ids=bool(body.return_token_ids),
        include_usage=stream is not None and stream.include_usage,
        continuous_usage=stream is not None and stream.continuous_usage_stats,
    )


__all__ = ["ChatCompletionChunk", "router"]
