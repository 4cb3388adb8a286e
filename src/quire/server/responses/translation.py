"""Translates a request of ``/v1/responses`` into a chat request.

Items become chat messages: consecutive reasoning, text and calls are one assistant message. Owns no
state; stored items are looked up through ``find``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.chat import Answer
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.generation import IdentityFields, SamplingFields
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
from quire.server.schemas.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    ImageItemPart,
    InputItem,
    ItemContent,
    ItemReference,
    MessageItem,
    OtherItemPart,
    ReasoningItem,
    RefusalItemPart,
    TextItemPart,
)
from quire.server.schemas.responses import (
    FunctionChoice,
    JsonObjectFormat,
    JsonSchemaTextFormat,
    ResponseAllowedTools,
    ResponsesRequest,
)
from quire.server.schemas.tools import (
    FunctionDefinition,
    JsonObjectResponse,
    JsonSchemaFormat,
    JsonSchemaResponse,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    ToolChoice,
    ToolDefinition,
)

FindItem = Callable[[str, str], InputItem]
"""Returns a stored item by its id; the second argument is the parameter that names it."""

_SHARED = (*SamplingFields.model_fields, *IdentityFields.model_fields)


def items_of(body: ResponsesRequest, find: FindItem) -> list[InputItem]:
    """Return the request's input as items, with references resolved.

    Raises:
        InvalidArgument: a reference to an item that is not stored.
    """
    if body.input is None:
        return []
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    return resolved(body.input, find, "input")


def resolved(items: Sequence[InputItem], find: FindItem, param: str) -> list[InputItem]:
    """Return ``items``, which are the field ``param`` of a request, with references resolved. An
    item that several refer to is looked up once: it may be long.

    Raises:
        InvalidArgument: a reference to an item that is not stored.
    """
    found: dict[str, InputItem] = {}
    every = []
    for index, item in enumerate(items):
        if isinstance(item, ItemReference):
            if item.id not in found:
                found[item.id] = find(item.id, f"{param}[{index}].id")
            item = found[item.id]
        every.append(item)
    return every


def messages_of(items: Sequence[InputItem]) -> list[Message]:
    """Return the chat messages of ``items``. Raises ``InvalidArgument`` for parts that no model can
    read."""
    joiner = _Joiner()
    for index, item in enumerate(items):
        joiner.add(item, f"input[{index}]")
    return joiner.finish()


class _Joiner:
    """Joins the items of one assistant turn. What is said in many items is joined once, at the end
    of the turn."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn: AssistantMessage | None = None
        self._thoughts: list[str] = []
        """The reasoning of the turn."""

    def add(self, item: InputItem, param: str) -> None:
        match item:
            case MessageItem(role="assistant"):
                turn = self._assistant(fresh=lambda turn: bool(turn.content or turn.tool_calls))
                turn.content = content_of(item.content, f"{param}.content")
            case ReasoningItem():
                texts = item.content or item.summary or []
                self._assistant(fresh=lambda turn: bool(turn.content or turn.tool_calls))
                text = "\n".join(part.text for part in texts)
                self._thoughts += [text] if text else []
            case FunctionCallItem():
                turn = self._assistant(fresh=lambda turn: False)
                function = CalledFunction(name=item.name, arguments=item.arguments)
                call = MessageToolCall(id=item.call_id, function=function)
                if turn.tool_calls is None:
                    turn.tool_calls = []
                turn.tool_calls.append(call)
            case _:
                self._end_turn()
                self._messages.append(_other_message(item, param))

    def _assistant(self, *, fresh: Callable[[AssistantMessage], bool]) -> AssistantMessage:
        """Return the assistant's current turn, or a new one if ``fresh``."""
        if self._turn is None or fresh(self._turn):
            self._end_turn()
            self._turn = AssistantMessage(role="assistant")
            self._messages.append(self._turn)
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None and self._thoughts:
            self._turn.reasoning_content = "\n".join(self._thoughts)
        self._turn, self._thoughts = None, []

    def finish(self) -> list[Message]:
        """Return the messages."""
        self._end_turn()
        return self._messages


def _other_message(item: InputItem, param: str) -> Message:
    match item:
        case MessageItem(role="user"):
            return UserMessage(role="user", content=content_of(item.content, f"{param}.content"))
        case MessageItem():
            content = content_of(item.content, f"{param}.content")
            return SystemMessage(role="system", content=content)
        case FunctionCallOutputItem():
            content = content_of(item.output, f"{param}.output")
            return ToolMessage(role="tool", content=content, tool_call_id=item.call_id)
    raise AssertionError("references have been resolved")


def content_of(content: ItemContent, param: str) -> TextOrParts:
    """Return the content of a message in the form of chat requests.

    Raises:
        InvalidArgument: a part that no model can read, or an image without its data.
    """
    if isinstance(content, str):
        return content
    parts: list[TextPart | RefusalPart | MediaPart] = [
        _part(part, f"{param}[{index}]") for index, part in enumerate(content)
    ]
    return parts or ""


def _part(part: object, param: str) -> TextPart | MediaPart:
    match part:
        case TextItemPart():
            return TextPart(type="text", text=part.text)
        case RefusalItemPart():
            return TextPart(type="text", text=part.refusal)
        case ImageItemPart():
            if part.image_url is None:
                raise InvalidArgument(
                    f"{param}: an image comes as image_url; files are not stored here", param=param
                )
            return MediaPart(type="image_url", image_url=ImageUrl(url=part.image_url))
        case OtherItemPart():
            raise InvalidArgument(
                f"{param} is of type {part.type}, which no model here reads", param=param
            )
    raise AssertionError(f"no such part: {part!r}")


def message_of_answer(answer: Answer) -> AssistantMessage:
    """Return the message with which a conversation continues. A model's own output needs no
    validation."""
    calls = [
        MessageToolCall.model_construct(
            id=call.id,
            type="function",
            function=CalledFunction.model_construct(name=call.name, arguments=call.arguments),
        )
        for call in answer.calls
    ]
    return AssistantMessage.model_construct(
        role="assistant",
        content=answer.content,
        reasoning_content=answer.reasoning or None,
        tool_calls=calls or None,
    )


def chat_request(body: ResponsesRequest, messages: Sequence[Message]) -> ChatCompletionRequest:
    """Return ``body`` as a chat request, with ``messages`` as its conversation. All parts have been
    validated already."""
    shared = {name: getattr(body, name) for name in _SHARED}
    tools, choice = _tools(body)
    text = body.text
    reasoning = body.reasoning
    return ChatCompletionRequest.model_construct(
        **shared,
        model=body.model,
        messages=with_instructions(body, messages),
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_response_format(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=body.wants_logprobs,
        top_logprobs=body.top_logprobs,
        reasoning_effort=None if reasoning is None else reasoning.effort,
        verbosity=None if text is None else text.verbosity,
        chat_template_kwargs=body.chat_template_kwargs,
        stream=body.stream,
    )


def with_instructions(body: ResponsesRequest, messages: Sequence[Message]) -> list[Message]:
    """Return ``messages`` after the ``instructions``, which belong to this request only."""
    if not body.instructions:
        return list(messages)
    return [SystemMessage(role="system", content=body.instructions), *messages]


def _tools(body: ResponsesRequest) -> tuple[list[ToolDefinition], ToolChoice | None]:
    choice = body.tool_choice
    tools = list(body.tools or ())
    if isinstance(choice, ResponseAllowedTools):
        allowed = {tool.name for tool in choice.tools}
        tools = [tool for tool in tools if tool.name in allowed]
        choice = choice.mode
    defined = [
        ToolDefinition(
            type="function",
            function=FunctionDefinition(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                strict=tool.strict,
            ),
        )
        for tool in tools
    ]
    if isinstance(choice, FunctionChoice):
        return defined, NamedToolChoice(type="function", function=NamedFunction(name=choice.name))
    return defined, choice


def _response_format(body: ResponsesRequest) -> ResponseFormat | None:
    chosen = None if body.text is None else body.text.format
    if isinstance(chosen, JsonObjectFormat):
        return JsonObjectResponse(type="json_object")
    if isinstance(chosen, JsonSchemaTextFormat):
        schema: dict[str, Any] = {"schema": chosen.json_schema}
        described = JsonSchemaFormat(
            name=chosen.name, description=chosen.description, strict=chosen.strict, **schema
        )
        return JsonSchemaResponse(type="json_schema", json_schema=described)
    return None
