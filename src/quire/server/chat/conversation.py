"""A request's messages in two other forms: what chat templates read, and canonical turns.

Templates get plain text and, for tool calls, arguments as objects. Turns are text that is the same
for an answer when this node gives it and when a client sends it back, which is how a later call is
recognised as part of the same session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from quire.core.errors import InvalidArgument
from quire.node import Turn
from quire.programs.chat import Answer
from quire.server.schemas.messages import (
    AssistantMessage,
    Content,
    MediaPart,
    Message,
    MessageToolCall,
    RefusalPart,
    ToolMessage,
)


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for a template: ``developer`` is ``system``, parts are joined by line breaks, a
    tool's answer knows the name of the function that was called.

    Raises:
        InvalidArgument: a part is not text.
    """
    names: dict[str, str] = {}
    converted = []
    for index, message in enumerate(messages):
        entry: dict[str, Any] = {
            "role": "system" if message.role == "developer" else message.role,
            "content": text_of(message.content, f"messages[{index}].content"),
        }
        if message.name is not None:
            entry["name"] = message.name
        if isinstance(message, AssistantMessage):
            entry |= _assistant_fields(message)
            names |= {call.id: call.function.name for call in message.tool_calls or ()}
        elif isinstance(message, ToolMessage):
            entry["tool_call_id"] = message.tool_call_id
            entry.setdefault("name", names.get(message.tool_call_id))
        converted.append(entry)
    return converted


def _assistant_fields(message: AssistantMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        fields["reasoning_content"] = reasoning
    if message.refusal and not message.content:
        fields["content"] = message.refusal
    if message.tool_calls:
        fields["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return fields


def _template_call(call: MessageToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": parsed(call.function.arguments)},
    }


def parsed(arguments: str) -> Any:
    """The object that a call's arguments spell; the text itself where they spell none."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def text_of(content: Content | None, param: str) -> str:
    """The text of a message's content.

    Raises:
        InvalidArgument: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, MediaPart):
            raise InvalidArgument(
                f"{param}[{index}] is of type {part.type}, but this model reads text only",
                param=f"{param}[{index}]",
            )
        texts.append(part.refusal if isinstance(part, RefusalPart) else part.text)
    return "\n".join(texts)


def turns_of(messages: Sequence[dict[str, Any]]) -> list[Turn]:
    """Canonical turns of ``template_messages``."""
    return [_turn(entry) for entry in messages]


def _turn(entry: dict[str, Any]) -> Turn:
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in entry.get("tool_calls", ())
    ]
    return Turn(entry["role"], _canonical(entry["content"], calls))


def turn_of_answer(answer: Answer) -> Turn:
    """The turn that a client sends back when it continues after ``answer``."""
    calls = [(call.name, parsed(call.arguments)) for call in answer.calls]
    return Turn("assistant", _canonical(answer.content, calls))


def _canonical(text: str, calls: Iterable[tuple[str, Any]]) -> str:
    """Clients strip white space and write JSON anew, so neither may matter."""
    lines = [json.dumps(call, sort_keys=True, separators=(",", ":")) for call in calls]
    return "\n".join([text.strip(), *lines])


__all__ = ["parsed", "template_messages", "text_of", "turn_of_answer", "turns_of"]
