"""Answers and the results of their calls, as messages for chat templates.

Templates require a call's arguments as an object, its id, and the name and id of the call with each
result. Must not know who renders the messages.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.chat.dialects import Dialect
from quire.programs.chat.pieces import Answer, Call
from quire.programs.chat.template import Message
from quire.programs.shown_values import problem_with

_ONE_CALL_A_MESSAGE = frozenset({Dialect.LLAMA, Dialect.HARMONY})
"""Templates of Llama 3 refuse a message with several calls; those of gpt-oss show only the
first."""


def as_messages(given: Iterable[Message]) -> list[Message]:
    """``given`` as a list. Raises ``InvalidArgument`` unless all entries are messages."""
    messages = list(given)
    for message in messages:
        if not isinstance(message, Mapping):
            raise InvalidArgument(
                f'{message!r} is not a message: give a list of {{"role": "user", "content": "..."}}'
            )
    return messages


def parsed_arguments(arguments: str) -> Any:
    """The object in a call's arguments; the text itself if it is not a JSON object, or one that
    cannot be written again for every reader."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):  # the second: brackets without end
        return arguments
    return value if isinstance(value, dict) and problem_with(value) is None else arguments


def template_call(call: Call) -> dict[str, Any]:
    """One entry of a message's ``tool_calls``."""
    function = {"name": call.name, "arguments": parsed_arguments(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def turn_messages(answer: Answer, results: Sequence[str]) -> list[dict[str, Any]]:
    """``answer`` and the results of its calls, one for each, in order."""
    said: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        said["reasoning_content"] = answer.reasoning
    if answer.calls:
        said["tool_calls"] = [template_call(call) for call in answer.calls]
    return [said] + [
        {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": result}
        for call, result in zip(answer.calls, results, strict=True)
    ]


def for_template(messages: Sequence[Message], dialect: Dialect) -> Sequence[Message]:
    """``messages`` for the templates of ``dialect``. If these take one call per message, a message
    with several calls is split, each part followed by its result."""
    if dialect not in _ONE_CALL_A_MESSAGE:
        return messages
    told: list[Message] = []
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        if len(message.get("tool_calls") or ()) < 2:
            told.append(message)
            continue
        results = []
        while rest and rest[0].get("role") == "tool":
            results.append(rest.popleft())
        told += _in_pairs(message, results)
    return told


def _in_pairs(message: Message, results: list[Message]) -> Iterator[Message]:
    """Each call of ``message`` with the result that names it; then results that name none."""
    said = message
    for call in message["tool_calls"]:
        yield {**said, "tool_calls": [call]}
        said = {"role": message["role"], "content": ""}
        for result in results:
            if result.get("tool_call_id") == call.get("id"):
                results.remove(result)
                yield result
                break
    yield from results
