"""One request as a strategy sees it: its path and fields, its session, and its prompt.

Owns the few fields that a router reads of a body; the node checks the rest, and a body that cannot
be read here is passed on for the node to refuse. Must not know nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers

from quire.cluster.requests.answer import RoutedAnswer
from quire.core.errors import UNREADABLE, InvalidArgument
from quire.server.requests.identity import NAMING_HEADERS, identify
from quire.server.schemas.generation import IdentityFields

T = TypeVar("T")

RawHeaders = Sequence[tuple[bytes, bytes]]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_GENERATIONS = frozenset({COMPLETIONS, CHAT, "/v1/messages", "/v1/responses"})
_NAMING_HEADERS = frozenset(name.encode() for name in NAMING_HEADERS)


class _Read(msgspec.Struct):
    """The fields that decide where a request goes. They may have any type: the node checks them."""

    model: Any = None
    stream: Any = None
    session_id: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    input_file_id: Any = None
    id: Any = None
    parent: Any = None
    query_id: Any = None


@dataclass(frozen=True, slots=True)
class Upload:
    """A body that is passed on while it arrives. ``length``: in bytes, None if the client has not
    sent it."""

    pieces: AsyncIterable[bytes]
    length: int | None


class PromptPages(msgspec.Struct, frozen=True):
    """A prompt as a node reads it. ``keys``: the keys of its full pages of ``page_size`` tokens
    each, eight bytes a key."""

    tokens: list[int]
    page_size: int
    keys: bytes


class BegunWork:
    """The work that has begun at engines for one request, so that all of it can be ended.
    ``leases``: those that no ``start_generate`` has used yet, each with the function that ends it;
    ``lost``: the names of the engines that the request has lost, or that took nothing; ``left``:
    those among them that live and load their engine again, and where it has not waited a second
    time; ``full``: those that took none of the calls with small answers;
    ``num_refused``: how often an engine has answered that it takes nothing now."""

    def __init__(self) -> None:
        self.answers: list[RoutedAnswer] = []
        self.leases: dict[str, Callable[[str], None]] = {}
        self.lost: set[str] = set()
        self.left: set[str] = set()
        self.full: set[str] = set()
        self.num_refused = 0
        self._reporting: set[asyncio.Task[Any]] = set()

    def refused_by(self, engine: str) -> None:
        """Note that ``engine`` takes nothing now."""
        self.lost.add(engine)
        self.num_refused += 1

    def keep(self, call: asyncio.Task[T], on_result: Callable[[T], None]) -> None:
        """Let ``call`` go on although the request does not wait for it any more: it has only its
        report left. ``on_result`` receives its result, unless it fails."""

        def ended(task: asyncio.Task[T]) -> None:
            self._reporting.discard(task)
            if not task.cancelled() and task.exception() is None:
                on_result(task.result())

        self._reporting.add(call)
        call.add_done_callback(ended)

    def end(self, kept: RoutedAnswer | None = None) -> None:
        """Close every answer but ``kept``, and end every lease."""
        for answer in self.answers:
            if answer is not kept:
                answer.close()
        self.answers = [] if kept is None else [kept]
        self.end_leases()

    def end_leases(self) -> None:
        """End every lease."""
        leases, self.leases = self.leases, {}
        for kv_addr_info, release in leases.items():
            release(kv_addr_info)


OF_CALLS = ("begin", "images", "kv_addr_info", "num_generated", "request_id")
"""The fields of ``start_generate`` that a completion does not have."""


class Request:
    """A client's request. ``target`` is the path with its query; ``headers`` are those to pass on,
    with lower-case names."""

    def __init__(
        self, method: str, target: str, headers: RawHeaders, body: bytes, request_id: str
    ) -> None:
        self.method = method
        self.target = target
        self.path = target.partition("?")[0]
        self.headers = headers
        self.body = body
        self.request_id = request_id
        self.upload: Upload | None = None
        """The body of an upload, in place of ``body``."""
        self.work = BegunWork()
        self.home: str | None = None
        """The name of the engine that is the home of the request's session, if it has a session."""
        self.prefers: str | None = None
        """The name of the engine at which the answer is to go on when it leaves its present one."""
        self.is_resumable = False
        """Whether the answer's events contain what is needed to go on at another engine."""
        self.awaits_program = False
        """Whether the client is answered only when the program that it launches has ended."""
        self.tells_tokens = True
        """Whether the client has asked for the tokens that the events contain."""
        self.pages: PromptPages | None = None
        """The prompt as a node reads it, once a node was asked."""

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The body as JSON; empty if it is no JSON object, or nested too deeply to be read: its
        node refuses it."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except UNREADABLE:
            return {}

    @property
    def model(self) -> str | None:
        return self.text_of("model")

    @property
    def streams(self) -> bool:
        return self._read.stream is True

    @property
    def is_generation(self) -> bool:
        """Whether it asks for an answer of a model, which changes nothing at the node."""
        return self.method == "POST" and self.path in _GENERATIONS

    @cached_property
    def session(self) -> str | None:
        """The client's name for the session of the request, as nodes read it; None if it names
        none."""
        named = self.text_of("session_id")
        if named is None and not any(name in _NAMING_HEADERS for name, _ in self.headers):
            return None
        known = Headers(raw=list(self.headers))
        try:
            fields = IdentityFields.model_validate({"session_id": named})
            return identify(known, fields).client_id
        except (InvalidArgument, ValueError):  # the node refuses it, with a better message
            return None

    @property
    def prompt(self) -> str | list[int] | None:
        """The prompt of a completion with one prompt, as text or token ids; else None."""
        if self.path != COMPLETIONS:
            return None
        prompt = self.fields.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            (prompt,) = prompt
        if isinstance(prompt, str):
            return prompt
        is_ids = isinstance(prompt, list) and prompt and set(map(type, prompt)) == {int}
        return prompt if is_ids else None

    @property
    def field_of_calls(self) -> str | None:
        """The first field that nodes take in the three calls alone: they refuse a client's request
        with it."""
        return next((name for name in OF_CALLS if name in self.fields), None)

    @cached_property
    def is_divisible(self) -> bool:
        """Whether several engines can compute its prompt: it is a completion with one prompt, or a
        chat of texts and images, and does not ask for log probabilities of its prompt, which an
        engine has only of what it computes itself. One with a field of the calls is not: its node
        refuses it. Nor is one whose prompt the calls cannot tell: it is to be truncated, or its
        template is to see documents."""
        if self.fields.get("truncate_prompt_tokens") is not None or self.fields.get("documents"):
            return False
        if self._wants_prompt_logprobs or self.field_of_calls is not None:
            return False
        if self.path != CHAT:
            return self.prompt is not None
        messages = self.fields.get("messages")
        if not (isinstance(messages, list) and messages):
            return False
        return all(_kinds(message) <= {"text", "image_url"} for message in messages)

    @property
    def _wants_prompt_logprobs(self) -> bool:
        fields = self.fields
        of_echo = bool(fields.get("echo")) and fields.get("logprobs") is not None
        return of_echo or fields.get("prompt_logprobs") is not None

    @property
    def uses_cache(self) -> bool:
        """Whether its prompt comes from the prefix caches of engines and goes into them."""
        return self.fields.get("cache_salt") is None

    @cached_property
    def has_images(self) -> bool:
        """Whether it is a divisible chat with images: what is computed of images is in no prefix
        cache, so only a lease brings it to another engine."""
        if self.path != CHAT or not self.is_divisible:
            return False
        return any("image_url" in _kinds(message) for message in self.fields["messages"])

    @cached_property
    def prefix(self) -> str | tuple[int, ...]:
        """What requests with a common beginning share: the prompt, or tools and messages in the
        order in which a template writes them. Equal beginnings here are equal beginnings in the
        cache of a node; how many tokens they are is not known."""
        prompt = self.prompt
        if prompt is not None:
            return prompt if isinstance(prompt, str) else tuple(prompt)
        parts = [
            self.fields[name]
            for name in ("system", "instructions", "tools", "messages", "input")
            if name in self.fields
        ]
        return "".join(msgspec.json.encode(part).decode()[:-1] for part in parts)

    def text_of(self, name: str) -> str | None:
        """Return the field ``name`` of those that decide where a request goes, if it is a text that
        is not empty."""
        value = getattr(self._read, name)
        return value if isinstance(value, str) and value else None

    def conversation(self) -> str | None:
        """Return the id of the conversation that a response belongs to, given as an id or as an
        object with one."""
        value = self._read.conversation
        named = value.get("id") if isinstance(value, dict) else value
        return named if isinstance(named, str) else None

    def referenced_item(self) -> str | None:
        """Return the id of the first item that the input or the items only name: the node that
        stores it must be asked. None: there is no such item."""
        if b'"id"' not in self.body:
            return None
        for name in ("input", "items"):
            items = self.fields.get(name)
            for item in items if isinstance(items, list) else ():
                if isinstance(item, dict) and _is_reference(item):
                    return str(item["id"])
        return None

    @cached_property
    def _read(self) -> _Read:
        try:
            return msgspec.json.decode(self.body, type=_Read) if self.body else _Read()
        except UNREADABLE:
            return _Read()


def _is_reference(item: dict[str, Any]) -> bool:
    """Return whether ``item`` only names another one. As nodes read it, so does an item with
    neither a type nor a role."""
    kind = item.get("type")
    is_one = kind == "item_reference" or (kind is None and "role" not in item)
    return is_one and isinstance(item.get("id"), str) and bool(item["id"])


def _kinds(message: Any) -> set[Any]:
    """Return the types of a message's parts; for what is no message, a type that nothing
    accepts."""
    content = message.get("content") if isinstance(message, dict) else 0
    if isinstance(content, list):
        return {str(part.get("type")) if isinstance(part, dict) else "" for part in content}
    return {"text"} if content is None or isinstance(content, str) else {""}
