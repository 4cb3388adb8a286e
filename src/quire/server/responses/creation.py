"""Turns a request of ``/v1/responses`` into its plan, and a finished answer into a stored
response."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request

from quire.core.errors import InvalidArgument, PromptTooLong, UnknownHandle
from quire.node import SessionHandle
from quire.server.answers.frame import Frame, new_frame
from quire.server.answers.resuming.going_on import ResumableAnswer
from quire.server.chat.preparation import PreparedChat, prepare_chat, render_chat
from quire.server.context import caller_of, context_of
from quire.server.errors.errors import HttpError
from quire.server.errors.prompt_field import prompt_field
from quire.server.events import EventStyle, as_it_is
from quire.server.planning import GenerationPlan, told_stream
from quire.server.requests.strict_json import GENERATED_HEADER
from quire.server.responses.conversations import StoredConversation
from quire.server.responses.format import ResponseFormatter, ResponseOptions
from quire.server.responses.store import StoredResponse, sent_again
from quire.server.responses.translation import (
    chat_request,
    items_of,
    message_of_answer,
    messages_of,
)
from quire.server.schemas.messages import Message
from quire.server.schemas.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    ItemReference,
    MessageItem,
)
from quire.server.schemas.responses import (
    ConversationId,
    InputTokensRequest,
    ResponseObject,
    ResponsesRequest,
)


@dataclass(slots=True)
class Creation:
    """One response that is being made. ``entry`` is what will be stored, ``None`` with
    ``store: false``; ``grow`` adds a complete response to its conversation; ``telling``: see
    ``GenerationPlan``."""

    body: ResponsesRequest
    chat: PreparedChat
    messages: Sequence[Message]
    formatter: ResponseFormatter
    entry: StoredResponse | None
    grow: Callable[[ResponseObject], None] | None = None
    telling: ResumableAnswer | None = None

    def plan(self) -> GenerationPlan:
        style = EventStyle(as_it_is, b"", self.formatter.failed)
        fields = chat_request(self.body, self.messages)
        return GenerationPlan(
            fields,
            self.chat.model,
            [self.chat.generation],
            self.formatter,
            self.chat.turns,
            self._on_finished,
            style,
            self.telling,
        )

    def _on_finished(self, session: SessionHandle) -> None:
        """Register the complete answer with the session, and keep its pages for the stored
        response."""
        answer = self.formatter.answer()
        self.chat.remember(session, [answer])
        if self.grow is not None:
            self.grow(self.formatter.response())
        if self.entry is None:
            return
        self.entry.history = (*self.messages, message_of_answer(answer))
        self.entry.num_history_bytes += len(answer.content) + len(answer.reasoning)
        if self.chat.generation.cache:
            tokens = [*self.chat.prompt.token_ids, *self.formatter.token_ids]
            self.entry.kept = session.keep(self.chat.model, tokens)


async def create(request: Request, body: ResponsesRequest) -> Creation:
    """Prepare everything except the generation itself.

    Raises:
        QuireError, HttpError: the request cannot be served.
    """
    asked = None if GENERATED_HEADER in request.headers else _asked(request, body)
    telling = told_stream(request, context_of(request).node.model(body.model))
    if asked is None:
        history = b"" if telling is None else telling.history
        asked = _asked_elsewhere(history) if history else _asked(request, body)
    with prompt_field("input"):
        chat, messages = await _prepare(request, body, asked.messages)
    if telling is not None and _is_at_its_node(body):
        telling = replace(telling, history=_told(asked))
    frame = new_frame(chat.model) if telling is None else telling.frame
    formatter = ResponseFormatter(
        base_response(body, frame),
        chat.model.tokenizer,
        ResponseOptions(
            len(chat.prompt.token_ids),
            chat.model.info.pool.page_size,
            chat.num_logprobs,
        ),
        chat.reading,
    )
    entry = None
    if body.store is not False:
        entry = StoredResponse(f"resp_{frame.key}", caller_of(request), asked.shown)
        entry.num_history_bytes = asked.num_history_bytes
    return Creation(body, chat, messages, formatter, entry, asked.grow, telling)


async def count_input_tokens(request: Request, body: InputTokensRequest) -> int:
    """The tokens of the prompt that a response to ``body`` would have, of which nothing is cut.

    Raises:
        QuireError, HttpError: the prompt cannot be built.
    """
    given = {name: getattr(body, name) for name in body.model_fields_set}
    whole = ResponsesRequest.model_construct(**given)
    messages = _asked(request, whole).messages
    prompt = await render_chat(context_of(request), chat_request(whole, messages))
    return len(prompt.token_ids)


class _History(msgspec.Struct):
    """The messages before a response's answer, in the form in which they are sent to another node
    that continues it."""

    messages: list[dict[str, Any]]
    shown: list[dict[str, Any]]
    num_bytes: int


@dataclass(slots=True)
class _Asked:
    """The content of a request. ``messages``: the whole conversation that is to be answered.
    ``shown``: the items of this request. ``num_history_bytes``: the size of the conversation before
    it. ``grow``: see ``Creation``."""

    messages: list[Message]
    shown: list[dict[str, Any]]
    num_history_bytes: int = 0
    grow: Callable[[ResponseObject], None] | None = None


def _asked(request: Request, body: ResponsesRequest) -> _Asked:
    """Return the content of the request with what it refers to. Raises ``HttpError`` if there is
    nothing to answer."""
    store, tenant = context_of(request).responses, caller_of(request)
    previous = _previous(request, body)
    items = items_of(body, lambda item_id, param: store.item(tenant, item_id, param))
    conversation = _conversation(request, body)
    earlier = () if previous is None else previous.history
    said = [] if conversation is None else conversation.items
    known = [sent_again(item, "conversation") for item in said]
    shown = [stored_item(item) for item in items]
    messages = [*earlier, *messages_of([*known, *items])]
    if not messages:
        raise HttpError(
            400,
            "input: there is nothing to answer: send a text or items, or go on from a response "
            "with previous_response_id",
            code="invalid_argument",
            param="input",
        )
    before = previous if conversation is None else conversation
    return _Asked(
        messages,
        shown,
        0 if before is None else before.num_bytes,
        None if conversation is None else _growing(request, conversation, shown),
    )


def _asked_elsewhere(history: bytes) -> _Asked:
    """Return the content of a request whose node was lost, as that node has sent it. Its
    conversation is lost with the node.

    Raises:
        InvalidArgument: ``history`` cannot be read.
    """
    try:
        told = msgspec.json.decode(history, type=_History)
        messages = _MESSAGES.validate_python(told.messages)
    except (msgspec.MsgspecError, ValidationError, RecursionError) as exc:
        raise InvalidArgument(f"{GENERATED_HEADER} is not what a router sends: {exc}") from exc
    return _Asked(messages, told.shown, told.num_bytes)


_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


def _told(asked: _Asked) -> bytes:
    messages = [message.model_dump(exclude_none=True) for message in asked.messages]
    return msgspec.json.encode(_History(messages, asked.shown, asked.num_history_bytes))


def _is_at_its_node(body: ResponsesRequest) -> bool:
    """Return whether the request refers to something that only its node has."""
    if body.previous_response_id is not None or body.conversation is not None:
        return True
    given = body.input if isinstance(body.input, list) else ()
    return any(isinstance(item, ItemReference) for item in given)


def _conversation(request: Request, body: ResponsesRequest) -> StoredConversation | None:
    if body.conversation is None:
        return None
    store = context_of(request).conversations
    found = store.get(caller_of(request), body.conversation.id)
    store.check_room(found)
    return found


def _growing(
    request: Request, conversation: StoredConversation, said: Sequence[dict[str, Any]]
) -> Callable[[ResponseObject], None]:
    """Return a function that adds the input and output items of a response to ``conversation``."""
    store = context_of(request).conversations

    def grow(response: ResponseObject) -> None:
        output = [item.model_dump() for item in response.output]
        store.grow(conversation, [*said, *output])

    return grow


def _previous(request: Request, body: ResponsesRequest) -> StoredResponse | None:
    wanted = body.previous_response_id
    if wanted is None:
        return None
    try:
        previous = context_of(request).responses.get(caller_of(request), wanted)
    except UnknownHandle as exc:
        raise HttpError(
            400,
            f"previous_response_id: {exc.message}; send the conversation as input",
            code="previous_response_not_found",
            param="previous_response_id",
        ) from exc
    if not previous.history:
        raise HttpError(
            400,
            f"previous_response_id: response {wanted!r} is {previous.current().status} and has no "
            "answer to go on from: wait for it, or go on from an earlier one",
            code="previous_response_not_complete",
            param="previous_response_id",
        )
    return previous


async def _prepare(
    request: Request, body: ResponsesRequest, messages: list[Message]
) -> tuple[PreparedChat, list[Message]]:
    """Prepare the chat. With ``truncation`` auto, a conversation that is too long loses its oldest
    turns, as few as necessary."""
    try:
        return await prepare_chat(request, chat_request(body, messages)), messages
    except PromptTooLong as exc:
        starts = [index for index, one in enumerate(messages) if one.role == "user" and index]
        if body.truncation != "auto" or not starts:
            raise
        too_long = exc
    fitting: dict[int, tuple[PreparedChat, list[Message]]] = {}
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        shorter = _from_turn(messages, starts[middle])
        try:
            chat = await prepare_chat(request, chat_request(body, shorter))
        except PromptTooLong as exc:
            too_long, low = exc, middle + 1
        else:
            fitting[middle], high = (chat, shorter), middle
    if low not in fitting:
        raise too_long
    return fitting[low]


def _from_turn(messages: Sequence[Message], start: int) -> list[Message]:
    """Return the messages from ``start`` on, and all system messages before."""
    return [
        *(message for message in messages[:start] if message.role in ("system", "developer")),
        *messages[start:],
    ]


def base_response(body: ResponsesRequest, frame: Frame) -> ResponseObject:
    """Return the response before anything has been generated."""
    choice = body.tool_choice or "auto"
    text: dict[str, Any] = {"format": {"type": "text"}}
    if body.text is not None:
        text |= body.text.model_dump(by_alias=True, exclude_none=True)
    reasoning = body.reasoning
    return ResponseObject(
        id=f"resp_{frame.key}",
        created_at=frame.created_unix_s,
        status="queued" if body.background else "in_progress",
        model=frame.model,
        output=[],
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        conversation=None if body.conversation is None else ConversationId(id=body.conversation.id),
        prompt_cache_key=body.prompt_cache_key,
        reasoning={
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        safety_identifier=body.safety_identifier,
        service_tier="default",
        store=body.store is not False,
        temperature=body.temperature,
        text=text,
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
        tools=[tool.model_dump(exclude={"output_schema"}) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def stored_item(item: InputItem) -> dict[str, Any]:
    """Return ``item`` in the form in which it is shown later: with an id, and its content as
    parts."""
    shown: dict[str, Any] = item.model_dump(exclude_none=True)
    prefix = "rs"
    if isinstance(item, MessageItem):
        prefix = "msg"
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            shown["content"] = [{"type": kind, "text": item.content}]
        for part in shown["content"]:
            if part["type"] == "output_text":
                part["annotations"] = []
    elif isinstance(item, FunctionCallItem):
        prefix = "fc"
    elif isinstance(item, FunctionCallOutputItem):
        prefix = "fco"
    else:
        shown.setdefault("summary", [])
    shown.setdefault("id", f"{prefix}_{secrets.token_hex(16)}")
    return {**shown, "status": "completed"}
