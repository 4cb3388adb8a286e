"""The interface of strategies: engines, and the results of their calls.

A strategy is ``async def route(request, engines)``: it chooses engines, calls them, and returns an
answer. The three calls are those of the paper "A System for Microserving of LLMs", section 3.1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from quire.cluster.nodes.page_tree import Keys, Matches
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request

Prompt = str | list[int]


class PrepRecvResult(msgspec.Struct, frozen=True):
    """The result of ``prep_recv``. Tokens up to ``matched_len`` are in the engine's cache already;
    those from there to ``end``, ``num_tokens`` of them, are expected under the lease
    ``kv_addr_info``. ``rank`` names engine and epoch. ``call_s``: duration of the call, measured by
    the router."""

    kv_addr_info: str
    matched_len: int
    num_tokens: int
    end: int
    expires_in_s: float = 0.0
    rank: Any = None
    call_s: float = 0.0


class RemoteSendResult(msgspec.Struct, frozen=True):
    """The result of ``remote_send``, once everything has arrived. ``elapsed_s``: duration of the
    transfer; ``call_s``: duration of the whole call, measured by the router, with the wait for its
    turn; ``transport``: what has carried the bytes, for example ``nixl`` or ``tcp``."""

    num_tokens: int
    num_bytes: int = 0
    elapsed_s: float = 0.0
    call_s: float = 0.0
    transport: str = ""


@dataclass(frozen=True, slots=True)
class LocatedPrompt:
    """A prompt, and which engines have its beginning: ``num_matched`` gives, by an engine's name,
    how many tokens from the first its prefix cache has; engines that have none are left out.
    ``keys``: the keys of the prompt's pages of ``page_size`` tokens."""

    tokens: list[int]
    keys: Keys
    page_size: int
    num_matched: Matches


class Engine(Protocol):
    """One engine behind the router: the same object for every request, so that a strategy may use
    it as a key. ``load``: its unfinished requests; those of this router are counted as they come
    and go, those of others as the node last reported them. ``queue``: the requests that wait there,
    as last reported. ``token_bytes``: bytes of K and V of one token, 0 until the node has reported
    it; ``prompt_token_s``: the time to compute one token of a prompt, None until the node knows
    it."""

    @property
    def name(self) -> str: ...
    @property
    def load(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def prompt_token_s(self) -> float | None: ...
    @property
    def is_alive(self) -> bool: ...

    async def send(self, request: Request) -> RoutedAnswer:
        """Send ``request`` on unchanged.

        Raises:
            EngineLost: no answer begins. The router then tries another engine.
        """
        ...

    async def prompt_tokens(self, request: Request) -> list[int]:
        """Return the prompt's tokens, of a request that ``is_divisible``, as the engine computes
        them: a chat is rendered by the model's template.

        Raises:
            QuireError: the engine refuses.
        """
        ...

    async def locate(self, request: Request) -> LocatedPrompt | None:
        """Return where the prompt of ``request`` is, at all engines; this engine is only asked for
        the prompt's tokens. None if that cannot be known: the nodes report no index to the router,
        or the request is not one that ``is_divisible`` and ``uses_cache``.

        Raises:
            EngineLost: this engine is lost.
        """
        ...

    async def prep_recv(
        self, request: Request, end: int, *, prompt: Prompt | None = None
    ) -> PrepRecvResult:
        """Match ``prompt[:end]`` in the engine's cache, and make room for what is not there. A
        negative ``end`` counts from the prompt's end.

        Raises:
            QuireError: the engine refuses, for example because it has no room.
        """
        ...

    async def remote_send(
        self,
        request: Request,
        received: PrepRecvResult,
        *,
        begin: int,
        end: int,
        prompt: Prompt | None = None,
    ) -> RemoteSendResult:
        """Compute the part of ``prompt[begin:end]`` that this engine lacks, and send all of it to
        the lease of ``received``. Returns when it has arrived.

        Raises:
            QuireError: the engine refuses, or the transfer fails.
        """
        ...

    async def settle(self, request: Request, received: PrepRecvResult) -> None:
        """End the lease of ``received`` as soon as all that was sent to it has arrived; its full
        pages are then in the prefix cache. ``remote_send`` does not wait for that: the receiver's
        control learns of the arrival a moment later, and a lease that is ended before leaves
        nothing.

        Raises:
            QuireError: the lease has ended before.
        """
        ...

    async def pin(
        self, request: Request, price: float, ttl_s: float, *, prompt: Prompt | None = None
    ) -> int:
        """Have what the engine has cached of ``prompt`` evicted after everything that has a lower
        ``price``, for ``ttl_s`` seconds; return how many tokens that are. The engine's memory stays
        its own: when nothing else is left, these pages go, the cheapest first. 0 for a request that
        does not use the cache.

        Raises:
            QuireError: the engine refuses.
        """
        ...

    async def start_generate(
        self,
        request: Request,
        begin: int,
        *,
        received: PrepRecvResult | None = None,
        prompt: Prompt | None = None,
        num_generated: int | None = None,
    ) -> RoutedAnswer:
        """Compute ``prompt[begin:]`` and generate. The answer has the form of ``/v1/completions``;
        for a chat whose only further argument is ``received``, the form of that chat.

        Raises:
            EngineLost: no answer begins.
        """
        ...

    async def move(self, answer: RoutedAnswer, to: Engine) -> bool:
        """Have ``answer``, which the strategy has returned and this engine generates, go on at
        ``to``: its pages are sent while it decodes, then the stream continues there. Its client
        notices a pause of some steps. Return whether it has moved: an answer stays if it has ended,
        if it cannot go on elsewhere (see ``quire router --resume``), or if ``to`` takes no work."""
        ...


Route = Callable[[Request, Sequence[Engine]], Awaitable[RoutedAnswer]]
Idle = Callable[[Request, Sequence[Engine]], Awaitable[None]]
"""Called after an answer whose client now runs a tool; nothing awaits its result."""
