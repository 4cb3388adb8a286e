"""Translates a request of ``/v1/messages`` into a chat request.

A user's message with tool results becomes one chat message per result and one for the rest; the
blocks of an assistant's message become one chat message. If the last message is the assistant's,
the model continues it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from quire.server.schemas.anthropic import (
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.messages import (
    AssistantMessage,
    CalledFunction,
    ImageUrl,
    MediaPart,
    Message,
    MessageToolCall,
    RefusalPart,
    SystemMessage,
    TextOrParts,
    TextPart,
    ToolMessage,
    UserMessage,
)
from quire.server.schemas.tools import (
    FunctionDefinition,
    JsonSchemaFormat,
    JsonSchemaResponse,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    ToolChoice,
    ToolDefinition,
)


def chat_request(body: CountTokensRequest) -> ChatCompletionRequest:
    """Return ``body`` as a chat request, without ``max_tokens``. All parts have been validated
    already."""
    choice = body.tool_choice
    config = body.output_config
    going_on = body.messages[-1].role == "assistant"
    return ChatCompletionRequest.model_construct(
        model=body.model,
        messages=messages_of(body),
        tools=_tools(body) or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        response_format=_response_format(body),
        reasoning_effort=None if config is None else config.effort,
        chat_template_kwargs=None
        if body.thinking is None
        else {"enable_thinking": body.thinking.type != "disabled"},
        continue_final_message=going_on,
        add_generation_prompt=not going_on,
        **_generation(body),
    )


def _generation(body: CountTokensRequest) -> dict[str, Any]:
    if not isinstance(body, MessagesRequest):
        return {}
    return {
        "stop": body.stop_sequences,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "prompt_cache_key": None if body.metadata is None else body.metadata.user_id,
    }


def messages_of(body: CountTokensRequest) -> list[Message]:
    messages: list[Message] = []
    if body.system:
        system = body.system
        content: TextOrParts = (
            system if isinstance(system, str) else [_text_part(block.text) for block in system]
        )
        messages.append(SystemMessage(role="system", content=content))
    for message in body.messages:
        messages += _messages(message)
    return messages


def _messages(message: InputMessage) -> list[Message]:
    if message.role == "assistant":
        return [_assistant(message)]
    if message.role == "system":
        return [SystemMessage(role="system", content=_content(message.content))]
    if isinstance(message.content, str):
        return [UserMessage(role="user", content=message.content)]
    results: list[Message] = [
        ToolMessage(
            role="tool", content=_content(block.content or ""), tool_call_id=block.tool_use_id
        )
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]
    rest = [block for block in message.content if not isinstance(block, ToolResultBlock)]
    if rest or not results:
        results.append(UserMessage(role="user", content=_content(rest)))
    return results


def _assistant(message: InputMessage) -> AssistantMessage:
    """Return the assistant's message. It is built without validation: every block has been
    validated, and joined or rewritten texts may be longer than a single text may."""
    if isinstance(message.content, str):
        return AssistantMessage(role="assistant", content=message.content)
    texts, thoughts, calls = [], [], []
    for block in message.content:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = CalledFunction.model_construct(
                    name=block.name, arguments=json.dumps(block.input, ensure_ascii=False)
                )
                calls.append(MessageToolCall.model_construct(id=block.id, function=function))
    return AssistantMessage.model_construct(
        role="assistant",
        content="".join(texts),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _content(content: str | Sequence[Any]) -> TextOrParts:
    """Return the content for a chat message. Blocks that a message of this role cannot have are
    ignored."""
    if isinstance(content, str):
        return content
    parts: list[TextPart | RefusalPart | MediaPart] = []
    for block in content:
        if isinstance(block, TextBlock):
            parts.append(_text_part(block.text))
        elif isinstance(block, ImageBlock):
            parts.append(_image_part(block))
        elif isinstance(block, DocumentBlock):
            parts.append(_text_part(block.text))
    return parts or ""


def _text_part(text: str) -> TextPart:
    return TextPart(type="text", text=text)


def _image_part(block: ImageBlock) -> MediaPart:
    source = block.source
    url = source.url
    if source.type == "base64":
        url = f"data:{source.media_type};base64,{source.data}"
    return MediaPart.model_construct(
        type="image_url", image_url=ImageUrl.model_construct(url=url or "")
    )


def _tools(body: CountTokensRequest) -> list[ToolDefinition]:
    return [
        ToolDefinition(
            type="function",
            function=FunctionDefinition(
                name=tool.name,
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            ),
        )
        for tool in body.tools or ()
    ]


def _tool_choice(body: CountTokensRequest) -> ToolChoice | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.type == "tool":
        assert choice.name is not None, "a named tool is one of the tools"
        return NamedToolChoice(type="function", function=NamedFunction(name=choice.name))
    return "required" if choice.type == "any" else choice.type


def _response_format(body: CountTokensRequest) -> ResponseFormat | None:
    chosen = None if body.output_config is None else body.output_config.format
    if chosen is None:
        return None
    schema: dict[str, Any] = {"schema": chosen.json_schema}
    return JsonSchemaResponse(
        type="json_schema", json_schema=JsonSchemaFormat(name="output", **schema)
    )
