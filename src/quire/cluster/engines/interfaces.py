"""What a strategy meets: engines, and the answers that they give.

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
    """What ``prep_recv`` answers. Tokens up to ``matched_len`` are in the engine's cache already;
    those from there to ``end``, ``num_tokens`` of them, are expected under the lease
    ``kv_addr_info``. ``rank`` names engine and epoch. ``call_s``: what the call took the router."""

    kv_addr_info: str
    matched_len: int
    num_tokens: int
    end: int
    expires_in_s: float = 0.0
    rank: Any = None
    call_s: float = 0.0


class RemoteSendResult(msgspec.Struct, frozen=True):
    """What ``remote_send`` answers, when everything has arrived. ``elapsed_s``: of the transfer;
    ``call_s``: what the whole call took the router, the wait for its turn included."""

    num_tokens: int
    num_bytes: int = 0
    elapsed_s: float = 0.0
    call_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LocatedPrompt:
    """A prompt, and where its beginning is: ``num_matched`` tokens from the first are in the prefix
    cache of an engine, by its name; engines that have none are left out. ``keys``: of its pages of
    ``page_size`` tokens."""

    tokens: list[int]
    keys: Keys
    page_size: int
    num_matched: Matches


class Engine(Protocol):
    """One engine behind the router: the same object for every request, so that a strategy may use
    it as a key. ``load``: requests that it has and has not finished, this router's as they come and
    go, and others' as it told last. ``queue``: those that wait there, as it told last.
    ``token_bytes``: K and V of a token, 0 as long as it has not told; ``prompt_token_s``: how long
    it computes one token of a prompt, None as long as it does not know."""

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
        """Send ``request`` on as it came.

        Raises:
            EngineLost: no answer begins. The router then tries another engine.
        """
        ...

    async def prompt_tokens(self, request: Request) -> list[int]:
        """The prompt of a request that ``is_divisible``, as the engine computes it: a chat's is
        rendered by the model's template.

        Raises:
            QuireError: the engine refuses.
        """
        ...

    async def locate(self, request: Request) -> LocatedPrompt | None:
        """Where the prompt of ``request`` is, at all engines: this one is asked for its tokens
        alone. Nothing, where that cannot be known: the nodes tell no router what they have, or it
        is no request that ``is_divisible``.

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
        """Compute what this engine has not of ``prompt[begin:end]``, and send all of it to where
        ``received`` says. Returns when it has arrived.

        Raises:
            QuireError: the engine refuses, or the transfer fails.
        """
        ...

    async def settle(self, request: Request, received: PrepRecvResult) -> None:
        """End the lease of ``received`` when all has arrived that was sent to it; the full pages
        are in the prefix cache then. ``remote_send`` does not wait for that: the receiver's control
        hears of the end a moment later, and a lease that is given up before leaves nothing.

        Raises:
            QuireError: the lease has ended before.
        """
        ...

    async def pin(
        self, request: Request, price: float, ttl_s: float, *, prompt: Prompt | None = None
    ) -> int:
        """Have what the engine has cached of ``prompt`` evicted after all that has a lower
        ``price``, for ``ttl_s`` seconds; how many tokens that are. The engine's memory stays its
        own: when nothing else is left, they go, the cheapest first.

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
        """Compute ``prompt[begin:]`` and generate; the answer is that of ``/v1/completions``, or
        of the chat that ``request`` is, if ``received`` is all that is named.
        ``received``: the lease under which the tokens before have come. ``num_generated``: how many
        tokens at the prompt's end were generated elsewhere.

        Raises:
            EngineLost: no answer begins.
        """
        ...

    async def move(self, answer: RoutedAnswer, to: Engine) -> bool:
        """Have ``answer``, which the strategy has returned and this engine gives, go on at ``to``:
        what is computed of it goes ahead while it decodes, then the stream goes on there. Its
        client notices a pause of some steps. Returns whether it has moved: one stays that has ended
        or cannot go on elsewhere (see ``quire router --resume``), or where ``to`` takes no work."""
        ...


Route = Callable[[Request, Sequence[Engine]], Awaitable[RoutedAnswer]]
Idle = Callable[[Request, Sequence[Engine]], Awaitable[None]]
"""Is told that the client of a request that was answered runs a tool now; nobody waits for it."""
