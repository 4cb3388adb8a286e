"""A request's chat messages in two other forms: for chat templates, and as canonical turns.

Templates get plain text (those of vision models: a list of parts) and, for tool calls, arguments as
objects. The text of a turn is the same for an answer that this node gives and for the same answer
sent back by a client; this is how a later request is recognised as part of a session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.node import ConversationTurn
from quire.programs.chat import Answer, Call, parsed_arguments, template_call
from quire.server.chat.images import ImageReader
from quire.server.schemas.messages import (
    AssistantMessage,
    MediaPart,
    Message,
    MessageToolCall,
    RefusalPart,
    TextOrParts,
    TextPart,
    ToolMessage,
)


def template_messages(messages: Sequence[Message], images: ImageReader) -> list[dict[str, Any]]:
    """Return chat messages for a template: ``developer`` becomes ``system``, parts are joined by
    line breaks, and a tool's result gets the name of the called function. ``images`` reads the
    images.

    Raises:
        InvalidArgument: a part that the model cannot read.
    """
    names: dict[str, str] = {}
    converted = []
    for index, message in enumerate(messages):
        entry: dict[str, Any] = {
            "role": "system" if message.role == "developer" else message.role,
            "content": _content(message.content, f"messages[{index}].content", images),
        }
        if message.name is not None:
            entry["name"] = message.name
        if isinstance(message, AssistantMessage):
            entry |= _assistant_fields(message, images)
            names |= {call.id: call.function.name for call in message.tool_calls or ()}
        elif isinstance(message, ToolMessage):
            entry["tool_call_id"] = message.tool_call_id
            entry.setdefault("name", names.get(message.tool_call_id))
        converted.append(entry)
    return converted


def _assistant_fields(message: AssistantMessage, images: ImageReader) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        fields["reasoning_content"] = reasoning
    if message.refusal and not message.content:
        fields["content"] = _content(message.refusal, "refusal", images)
    if message.tool_calls:
        fields["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return fields


def _template_call(call: MessageToolCall) -> dict[str, Any]:
    return template_call(Call(call.id, call.function.name, call.function.arguments))


def _content(
    content: TextOrParts | None, param: str, images: ImageReader
) -> str | list[dict[str, Any]]:
    """Return a message's content for the model's template: parts if the model reads ``images``,
    else a text."""
    if content is None or isinstance(content, str):
        parts = [{"type": "text", "text": content}] if content else []
    else:
        parts = [
            images.read(part, f"{param}[{index}]")
            if isinstance(part, MediaPart)
            else {"type": "text", "text": _text_of(part)}
            for index, part in enumerate(content)
        ]
    return _text(parts) if images.accepted is None else parts


def _text_of(part: TextPart | RefusalPart) -> str:
    return part.refusal if isinstance(part, RefusalPart) else part.text


def _text(parts: Iterable[Mapping[str, str]]) -> str:
    return "\n".join(part["text"] if "text" in part else part["sha256"] for part in parts)


def turns_of(messages: Sequence[dict[str, Any]]) -> list[ConversationTurn]:
    """Return the canonical turns of ``template_messages``."""
    return [_turn(entry) for entry in messages]


def _turn(entry: dict[str, Any]) -> ConversationTurn:
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in entry.get("tool_calls", ())
    ]
    content = entry["content"]
    text = content if isinstance(content, str) else _text(content)
    return ConversationTurn(entry["role"], _canonical(text, calls))


def turn_of_answer(answer: Answer) -> ConversationTurn:
    """Return the turn that a client sends back when it continues after ``answer``."""
    calls = [(call.name, parsed_arguments(call.arguments)) for call in answer.calls]
    return ConversationTurn("assistant", _canonical(answer.content, calls))


def _canonical(text: str, calls: Iterable[tuple[str, Any]]) -> str:
    """Return the text without outer white space, and the arguments in one spelling: clients change
    both."""
    lines = [json.dumps(call, sort_keys=True, separators=(",", ":")) for call in calls]
    return "\n".join([text.strip(), *lines])
