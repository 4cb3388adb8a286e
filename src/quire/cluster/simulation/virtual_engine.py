"""One virtual node as strategies see it: whole requests, and the three calls.

Owns the router's knowledge of the node, which is as old as on a real router, and the times between
router and node. Must not know any strategy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from quire.cluster.engines.interfaces import (
    Engine,
    LocatedPrompt,
    PrepRecvResult,
    Prompt,
    RemoteSendResult,
)
from quire.cluster.engines.node_figures import EngineFigures
from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.page_tree import PageTree, unpacked
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import PromptPages, Request
from quire.cluster.simulation.generation import LeasedPrefix, VirtualGeneration, generate
from quire.cluster.simulation.virtual_node import VirtualNode
from quire.cluster.simulation.virtual_port import TENANT
from quire.control import prompt_keys, root_key
from quire.core.errors import InvalidArgument, UnknownHandle
from quire.core.exchange import KEY_BYTES, SendTarget
from quire.core.lease_commands import Leased
from quire.programs.api import Api
from quire.programs.builtin.exchange import (
    LeaseRequest,
    PinRequest,
    PrepareRequest,
    SendRequest,
    change_lease,
    pin,
    prepare_receive,
    remote_send,
)

_TTL_S = 60.0
_SHORT_KEY_BYTES = 8

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Address:
    """The lease behind a ``kv_addr_info``. ``end``: the end of the tokens that it covers."""

    leased: Leased
    end: int
    expires_s: float


class Addresses:
    """The leases of a virtual cluster, by the ``kv_addr_info`` that strategies pass on."""

    def __init__(self) -> None:
        self._addresses: dict[str, _Address] = {}

    def add(self, engine: str, address: _Address) -> str:
        name = f"{engine}/{address.leased.lease.number}"
        self._addresses[name] = address
        return name

    def find(self, kv_addr_info: str) -> _Address:
        """Return the lease behind ``kv_addr_info``.

        Raises:
            UnknownHandle: there is no such lease.
        """
        address = self._addresses.get(kv_addr_info)
        if address is None:
            raise UnknownHandle(f"no lease {kv_addr_info!r}: pass on what prep_recv has answered")
        return address

    def forget(self, kv_addr_info: str) -> None:
        self._addresses.pop(kv_addr_info, None)


class VirtualAnswer:
    """Four bytes for each token: the first piece is the first token, the second all others. Both
    take ``way_s`` from the node to the router; the first one is on its way when this is made."""

    head = AnswerHead(200, [])

    def __init__(
        self, engine: str, generation: VirtualGeneration, on_close: Callable[[], None], way_s: float
    ) -> None:
        self.engine = engine
        self._generation = generation
        self._on_close: Callable[[], None] | None = on_close
        self._num_first = generation.num_tokens
        self._num_told = 0
        self._rest = asyncio.create_task(self._come(way_s))

    async def _come(self, way_s: float) -> None:
        """Wait until the rest has been generated, and has arrived."""
        await self._generation.whole()
        await _passed(way_s)

    async def read(self) -> bytes:
        if self._num_told:
            await self._rest
        num_there = self._generation.num_tokens if self._num_told else self._num_first
        num_new = num_there - self._num_told
        self._num_told += num_new
        return bytes(4 * num_new)

    def pass_to(self, sink: Sink) -> None:
        """Read the whole answer."""

    def close(self) -> None:
        if not self._rest.cancel() and not self._rest.cancelled():
            self._rest.exception()  # nothing has been read so far
        self._generation.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()


class VirtualEngine(EngineFigures):
    """Implements ``Engine``. ``node`` is the router's view of it; ``call_s``: the time to the node
    and back."""

    is_alive = True

    def __init__(
        self,
        node: RoutedNode,
        virtual: VirtualNode,
        tree: PageTree,
        addresses: Addresses,
        call_s: float,
    ) -> None:
        super().__init__(node)
        self.virtual = virtual
        self._tree = tree
        self._addresses = addresses
        self._way_s = call_s / 2
        self._num_keys = 0
        self._ending: set[asyncio.Task[None]] = set()

    # -- whole requests ----------------------------------------------------------------------------

    async def send(self, request: Request) -> RoutedAnswer:
        return await self._answer(request, _tokens(request, None), None)

    async def start_generate(
        self,
        request: Request,
        begin: int,
        *,
        received: PrepRecvResult | None = None,
        prompt: Prompt | None = None,
        num_generated: int | None = None,
    ) -> RoutedAnswer:
        tokens = _tokens(request, prompt)
        if received is None:
            return await self._answer(request, tokens, None)
        address = self._addresses.find(received.kv_addr_info)
        end = _place(tokens, begin)
        if end > address.end:
            raise InvalidArgument(f"begin is {end}, and the lease is for {address.end} tokens")
        taken = LeasedPrefix(address.leased.lease, min(end, len(tokens) - 1))
        answer = await self._answer(request, tokens, taken)
        request.work.leases.pop(received.kv_addr_info, None)
        self._addresses.forget(received.kv_addr_info)
        return answer

    async def _answer(
        self, request: Request, tokens: list[int], taken: LeasedPrefix | None
    ) -> RoutedAnswer:
        self._node.began()
        try:
            await self._pass()
            max_tokens = int(request.fields["max_tokens"])
            generation = await generate(self.virtual, tokens, max_tokens, taken)
            answer = VirtualAnswer(self.name, generation, self._node.ended, self._way_s)
        except BaseException:
            self._node.ended()
            raise
        request.work.answers.append(answer)
        await self._pass()
        return answer

    # -- the three calls ---------------------------------------------------------------------------

    async def prompt_tokens(self, request: Request) -> list[int]:
        return _tokens(request, None)

    async def locate(self, request: Request) -> LocatedPrompt | None:
        if not (self._tree.num_keys and request.is_divisible and request.uses_cache):
            return None
        if request.pages is None:
            async with self._calling():
                request.pages = self._pages(_tokens(request, None))
        pages = request.pages
        keys = unpacked(pages.keys)
        matched = self._tree.matched(keys, pages.page_size)
        return LocatedPrompt(pages.tokens, keys, pages.page_size, matched)

    def _pages(self, tokens: list[int]) -> PromptPages:
        info = self.virtual.model.info
        page_size = info.pool.page_size
        keys = prompt_keys(root_key(info.content, TENANT, None), page_size, tokens)
        return PromptPages(tokens, page_size, b"".join(key[:_SHORT_KEY_BYTES] for key in keys))

    async def prep_recv(
        self, request: Request, end: int, *, prompt: Prompt | None = None
    ) -> PrepRecvResult:
        tokens = _tokens(request, prompt)
        end = _place(tokens, end)
        self._num_keys += 1
        key = self._num_keys.to_bytes(KEY_BYTES, "big")
        wanted, began_s = tuple(tokens[:end]), self._now_s()
        asked = PrepareRequest(self.virtual.model_id, wanted, end, key, _TTL_S)
        async with self._calling():
            leased: Leased = await self._result(prepare_receive, asked)
        address = _Address(leased, end, self._now_s() + _TTL_S)
        kv_addr_info = self._addresses.add(self.name, address)
        request.work.leases[kv_addr_info] = self._end_lease
        rank = {"engine": leased.lease.engine, "epoch": leased.lease.epoch}
        matched = leased.num_matched
        call_s = self._now_s() - began_s
        return PrepRecvResult(kv_addr_info, matched, end - matched, end, _TTL_S, rank, call_s)

    async def remote_send(
        self,
        request: Request,
        received: PrepRecvResult,
        *,
        begin: int,
        end: int,
        prompt: Prompt | None = None,
    ) -> RemoteSendResult:
        tokens = _tokens(request, prompt)
        address = self._addresses.find(received.kv_addr_info)
        leased = address.leased
        begin, end = max(_place(tokens, begin), leased.num_matched), _place(tokens, end)
        if end > address.end:
            raise InvalidArgument(f"end is {end}, and the lease is for {address.end} tokens")
        if begin >= end:
            return RemoteSendResult(0)
        target = SendTarget(
            address=leased.address, lease=leased.lease.number, key=leased.lease.key, first=0
        )
        asked = SendRequest(
            model=self.virtual.model_id,
            prompt=tuple(tokens),
            begin=begin,
            end=end,
            lease_begin=leased.num_matched,
            target=target,
            content=leased.content,
        )
        began_s = self._now_s()
        async with self._calling():
            try:
                async with asyncio.timeout(address.expires_s - self._now_s()):
                    sent = await self._result(remote_send, asked)
            except TimeoutError as exc:
                raise UnknownHandle(
                    "the lease has expired meanwhile: call prep_recv again"
                ) from exc
        call_s = self._now_s() - began_s
        return RemoteSendResult(sent.num_tokens, sent.num_bytes, sent.elapsed_s, call_s)

    async def settle(self, request: Request, received: PrepRecvResult) -> None:
        lease = self._addresses.find(received.kv_addr_info).leased.lease
        asked = LeaseRequest(self.virtual.model_id, lease, when_arrived=True)
        async with self._calling():
            await self._result(change_lease, asked)
        request.work.leases.pop(received.kv_addr_info, None)
        self._addresses.forget(received.kv_addr_info)

    async def pin(
        self, request: Request, price: float, ttl_s: float, *, prompt: Prompt | None = None
    ) -> int:
        tokens = tuple(_tokens(request, prompt))
        asked = PinRequest(self.virtual.model_id, tokens, price, ttl_s)
        async with self._calling():
            return (await self._result(pin, asked)).num_tokens

    async def move(self, answer: RoutedAnswer, to: Engine) -> bool:
        """Refuse to move the answer.

        Raises:
            InvalidArgument: always. Moves are not modelled; returning that the answer stays would
                simulate another strategy.
        """
        raise InvalidArgument(f"{answer.engine}: running answers do not move in a simulation")

    # -- inside ------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _pass(self) -> None:
        """Wait for the time from router to node, or back."""
        await _passed(self._way_s)

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[None]:
        """Make one of the calls with a small answer."""
        self._node.began()
        try:
            await self._pass()
            yield
            await self._pass()
        finally:
            self._node.ended()

    async def _result(self, program: Callable[[Api, R], AsyncGenerator[T, None]], asked: R) -> T:
        """Run a program on the node; returns its result."""
        api = self.virtual.api()
        try:
            async with aclosing(program(api, asked)) as results:
                (result,) = [one async for one in results]
        finally:
            api.close()
        return result

    def _end_lease(self, kv_addr_info: str) -> None:
        """End a lease in the background, as a router does."""
        task = asyncio.create_task(self._cancel_lease(kv_addr_info))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _cancel_lease(self, kv_addr_info: str) -> None:
        lease = self._addresses.find(kv_addr_info).leased.lease
        self._addresses.forget(kv_addr_info)
        with suppress(UnknownHandle):  # it has ended by itself
            await self._result(change_lease, LeaseRequest(self.virtual.model_id, lease))


async def _passed(way_s: float) -> None:
    if way_s:
        await asyncio.sleep(way_s)


def _tokens(request: Request, prompt: Prompt | None) -> list[int]:
    found = request.prompt if prompt is None else prompt
    if not isinstance(found, list):
        raise InvalidArgument(
            f"{request.path}: virtual nodes take completions of token ids, one prompt at a time"
        )
    return found


def _place(tokens: list[int], index: int) -> int:
    place = index + len(tokens) if index < 0 else index
    if not 0 <= place <= len(tokens):
        raise InvalidArgument(f"{index} lies outside the prompt of {len(tokens)} tokens")
    return place
