"""The engine of one node, over HTTP: whole requests, and the three calls.

Owns the form of the calls. Must not know any strategy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from quire.cluster.engines.call_bodies import prompt_of, shared, unread
from quire.cluster.engines.interfaces import (
    Engine,
    LocatedPrompt,
    PrepRecvResult,
    Prompt,
    RemoteSendResult,
)
from quire.cluster.engines.node_figures import EngineFigures
from quire.cluster.engines.unanswered import UnansweredRequests
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.page_tree import PageTree, unpacked
from quire.cluster.requests.answer import NodeAnswer, RoutedAnswer
from quire.cluster.requests.request import CHAT, PromptPages, RawHeaders, Request
from quire.core.errors import (
    UNREADABLE,
    ConfigError,
    EngineFault,
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    QuireError,
    TransferFailed,
    UnknownHandle,
    from_record,
)
from quire.core.exchange import CLUSTER_KEY_HEADER
from quire.server.microserving.headers import RECEIVED_HEADER

logger = logging.getLogger(__name__)

_MAX_BYTES = 16 << 20
_CALLS = "/v1/microserving"
_LEASE_END_S = 10.0

Said = TypeVar("Said")
Mover = Callable[[RoutedAnswer, "NodeEngine", "NodeEngine"], Awaitable[bool]]


class _Pinned(msgspec.Struct):
    """The answer to ``pin``."""

    num_tokens: int


class _Tokens(msgspec.Struct):
    """The answer to ``/tokenize``."""

    tokens: list[int]


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """The key that routers and nodes share. Without it a router passes whole requests on."""

    key: str | None = None

    def headers(self) -> Mapping[str, str]:
        return {} if self.key is None else {CLUSTER_KEY_HEADER: self.key}


class NodeEngine(EngineFigures):
    """Implements ``Engine``. ``on_lost`` is called when a request has lost the node. ``tree`` holds
    the indexes of all engines of the router. ``mover`` moves an answer from one engine to
    another."""

    def __init__(
        self,
        node: RoutedNode,
        cluster_key: ClusterKey,
        on_lost: Callable[[], None],
        tree: PageTree,
        mover: Mover,
    ) -> None:
        super().__init__(node)
        self._cluster_key = cluster_key
        self._on_lost = on_lost
        self._tree = tree
        self._mover = mover
        self.unanswered = UnansweredRequests(node.name)
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def is_alive(self) -> bool:
        return self._node.liveness.is_alive

    # -- whole requests ----------------------------------------------------------------------------

    async def send(self, request: Request, *, may_repeat: bool = True) -> RoutedAnswer:
        """Send ``request`` on. ``may_repeat``: it may reach the node twice."""
        upload = request.upload
        return await self._answer(
            request,
            request.target,
            request.headers,
            request.body if upload is None else upload.pieces,
            length=None if upload is None else upload.length,
            may_repeat=may_repeat,
        )

    # -- the three calls ---------------------------------------------------------------------------

    async def prompt_tokens(self, request: Request) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, list):
            return prompt
        if request.pages is not None:
            return request.pages.tokens
        asked = unread(request)
        return (await self._call(request, "/tokenize", asked, request.headers, _Tokens)).tokens

    async def locate(self, request: Request) -> LocatedPrompt | None:
        if not (self._tree.num_keys and request.is_divisible and request.uses_cache):
            return None
        if request.pages is None:
            asked, headers = unread(request), self._headers(request)
            try:
                request.pages = await self._call(
                    request, f"{_CALLS}/pages", asked, headers, PromptPages
                )
            except EngineLost:
                raise
            except QuireError:  # the node refuses the request itself with a better message
                return None
        pages = request.pages
        keys = unpacked(pages.keys)
        matched = self._tree.matched(keys, pages.page_size)
        return LocatedPrompt(pages.tokens, keys, pages.page_size, matched)

    async def prep_recv(
        self, request: Request, end: int, *, prompt: Prompt | None = None
    ) -> PrepRecvResult:
        body = {**shared(request, prompt), "end": end}
        began_s = _now_s()
        received = await self._call(
            request, f"{_CALLS}/prep_recv", body, self._headers(request), PrepRecvResult
        )
        request.work.leases[received.kv_addr_info] = partial(
            self._end_lease, self._headers(request)
        )
        return replace(received, call_s=_now_s() - began_s)

    async def remote_send(
        self,
        request: Request,
        received: PrepRecvResult,
        *,
        begin: int,
        end: int,
        prompt: Prompt | None = None,
    ) -> RemoteSendResult:
        body = {
            **shared(request, prompt),
            "kv_addr_info": received.kv_addr_info,
            "recv_rank": received.rank,
            "begin": begin,
            "end": end,
        }
        began_s = _now_s()
        try:
            sent = await self._call(
                request, f"{_CALLS}/remote_send", body, self._headers(request), RemoteSendResult
            )
        except UnknownHandle as exc:
            raise TransferFailed(f"the lease has ended: {exc.message}") from exc
        return replace(sent, call_s=_now_s() - began_s)

    async def settle(self, request: Request, received: PrepRecvResult) -> None:
        await self._delete_lease(self._headers(request), received.kv_addr_info, when_arrived=True)
        request.work.leases.pop(received.kv_addr_info, None)

    async def pin(
        self, request: Request, price: float, ttl_s: float, *, prompt: Prompt | None = None
    ) -> int:
        if not request.uses_cache:
            return 0
        body = {**shared(request, prompt), "price": price, "ttl_s": ttl_s}
        del body["request_id"]  # a repeated call does no harm
        pinned = await self._call(request, f"{_CALLS}/pin", body, self._headers(request), _Pinned)
        return pinned.num_tokens

    async def start_generate(
        self,
        request: Request,
        begin: int,
        *,
        received: PrepRecvResult | None = None,
        prompt: Prompt | None = None,
        num_generated: int | None = None,
    ) -> RoutedAnswer:
        if request.path == CHAT and prompt is None and received is not None:
            lease = (RECEIVED_HEADER.encode(), received.kv_addr_info.encode())
            headers = [*self._headers(request), lease]
            answer = await self._answer(request, request.target, headers, request.body)
        else:
            body = {**request.fields, "prompt": prompt_of(request, prompt), "begin": begin}
            if received is not None:
                body["kv_addr_info"] = received.kv_addr_info
            if num_generated is not None:
                body["num_generated"] = num_generated
            path, encoded = f"{_CALLS}/start_generate", msgspec.json.encode(body)
            answer = await self._answer(request, path, self._headers(request), encoded)
        if received is None:
            return answer
        if answer.head.status < HTTPStatus.BAD_REQUEST:
            request.work.leases.pop(received.kv_addr_info, None)
        elif answer.head.status == HTTPStatus.NOT_FOUND:
            raise await self._lease_refusal(answer)
        return answer

    async def move(self, answer: RoutedAnswer, to: Engine) -> bool:
        if not isinstance(to, NodeEngine):
            raise InvalidArgument(f"{to!r} is no engine of this router: name one of 'engines'")
        return await self._mover(answer, self, to)

    async def _lease_refusal(self, answer: RoutedAnswer) -> QuireError:
        """Return the error of ``answer``, which says that something does not exist: usually the
        lease."""
        body = bytearray()
        with closing(answer):
            while len(body) <= _MAX_BYTES and (piece := await answer.read()):
                body += piece
        path = f"{_CALLS}/start_generate"
        refusal = self._refusal(path, answer.head.status, bytes(body))
        if isinstance(refusal, UnknownHandle):
            return TransferFailed(f"the lease has ended: {refusal.message}")
        return refusal

    # -- inside ------------------------------------------------------------------------------------

    async def _answer(
        self,
        request: Request,
        target: str,
        headers: RawHeaders,
        body: bytes | AsyncIterable[bytes],
        *,
        length: int | None = None,
        may_repeat: bool = True,
    ) -> RoutedAnswer:
        node = self._node
        waiting: AbstractAsyncContextManager[None] = (
            self.unanswered.waiting(request)
            if may_repeat and request.is_generation
            else nullcontext()
        )
        request.work.left.discard(self.name)
        node.began()
        try:
            async with waiting:
                exchange = await node.ask(
                    request.method,
                    target,
                    headers,
                    body,
                    length=length,
                    may_repeat=may_repeat,
                    is_stream=request.streams,
                )
                head = await exchange.head()
        except EngineLost:
            node.ended()
            self.lost(request)
            raise
        except BaseException:
            node.ended()
            raise
        answer = NodeAnswer(self.name, head, exchange, self._answered)
        request.work.answers.append(answer)
        return answer

    def may_be_waited_for_again(self, request: Request) -> bool:
        """Return whether ``request`` has waited here until the engine is loaded again, left for
        others, and may come back."""
        return self.name in request.work.left and not self._node.is_draining

    def lost(self, request: Request) -> None:
        """Note that ``request`` has lost the node before anything of its answer was delivered."""
        request.work.lost.add(self.name)
        self._on_lost()

    def _answered(self) -> None:
        self._node.ended()

    async def _call(
        self,
        request: Request,
        path: str,
        body: Mapping[str, Any],
        headers: RawHeaders,
        kind: type[Said],
    ) -> Said:
        """Make one of the calls with a small answer."""
        fields = {"model": request.model, **body}
        encoded = msgspec.json.encode(
            {key: fields[key] for key in fields if fields[key] is not None}
        )
        self._node.began()
        try:
            with await self._node.ask("POST", path, headers, encoded) as exchange:
                status = (await exchange.head()).status
                answer = await exchange.read_all(_MAX_BYTES)
        except EngineLost:
            self.lost(request)
            raise
        finally:
            self._node.ended()
        if status >= HTTPStatus.BAD_REQUEST:
            refusal = self._refusal(path, status, answer)
            if isinstance(refusal, EngineLost):  # the node lives, and starts its engine again
                self.lost(request)
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                request.work.full.add(self.name)
            raise refusal
        try:
            return msgspec.json.decode(answer, type=kind)
        except UNREADABLE as exc:
            raise EngineFault(
                f"{path} at {self.name} answers with what it should not: {exc}"
            ) from exc

    def _headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        if self._cluster_key.key is None:
            raise ConfigError(
                "the three calls need the key that routers and nodes share: start both with "
                "--cluster-key-file FILE"
            )
        own = [
            (name.encode(), value.encode()) for name, value in self._cluster_key.headers().items()
        ]
        return [*(pair for pair in request.headers if pair[0] != own[0][0]), *own]

    def _refusal(self, path: str, status: int, answer: bytes) -> QuireError:
        try:
            said = msgspec.json.decode(answer, type=dict[str, Any])["error"]
            code, message = str(said.get("code")), str(said.get("message"))
        except (*UNREADABLE, KeyError, AttributeError):
            code, message = "", answer[:200].decode(errors="replace")
        return from_record(ErrorRecord(code, f"{path} at {self.name} ({status}): {message}"))

    def _end_lease(self, headers: RawHeaders, kv_addr_info: str) -> None:
        """End a lease in the background: the client need not wait, and the lease expires anyway."""
        task = asyncio.create_task(self._cancel_lease(headers, kv_addr_info))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _cancel_lease(self, headers: RawHeaders, kv_addr_info: str) -> None:
        try:
            async with asyncio.timeout(_LEASE_END_S):
                await self._delete_lease(headers, kv_addr_info, when_arrived=False)
        except UnknownHandle:
            pass  # it has ended by itself
        except (QuireError, TimeoutError) as exc:
            logger.warning("a lease at %s stays until it expires: %s", self.name, exc)

    async def _delete_lease(
        self, headers: RawHeaders, kv_addr_info: str, *, when_arrived: bool
    ) -> None:
        path = f"{_CALLS}/leases"
        body = {"kv_addr_info": kv_addr_info, "when_arrived": when_arrived}
        with await self._node.ask("DELETE", path, headers, msgspec.json.encode(body)) as exchange:
            status = (await exchange.head()).status
            answer = await exchange.read_all(_MAX_BYTES)
        if status >= HTTPStatus.BAD_REQUEST:
            raise self._refusal(path, status, answer)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
