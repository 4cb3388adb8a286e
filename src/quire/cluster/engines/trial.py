"""The trial of a strategy: it routes two requests over pretended engines.

Owns the pretended engines. Must not know where the strategy comes from.
"""

from __future__ import annotations

import asyncio

import msgspec

from quire.cluster.engines.interfaces import (
    Engine,
    LocatedPrompt,
    PrepRecvResult,
    Prompt,
    RemoteSendResult,
    Route,
)
from quire.cluster.engines.strategy_errors import shown
from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.nodes.page_tree import PageChange, PageTree
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import CHAT, Request
from quire.core.errors import InvalidArgument

_NUM_ENGINES = 3
_NUM_TOKENS = 500
_REQUESTS = (
    ("/v1/completions", {"model": "trial", "prompt": "Once upon a time", "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
)


class TrialAnswer:
    """An empty answer."""

    head = AnswerHead(200, [])

    def __init__(self, engine: str) -> None:
        self.engine = engine

    async def read(self) -> bytes:
        return b""

    def pass_to(self, sink: Sink) -> None:
        """Do nothing: there are no pieces."""

    def close(self) -> None:
        """Do nothing: no exchange is under way."""


class TrialEngine:
    """Implements ``Engine`` without doing anything. ``located``: the result of ``locate`` for every
    prompt."""

    load = queue = num_blocks = num_free_blocks = epoch = token_bytes = 0
    prompt_token_s: float | None = None
    is_alive = True

    def __init__(self, name: str, located: LocatedPrompt | None = None) -> None:
        self.name = name
        self.located = located

    async def send(self, request: Request) -> RoutedAnswer:
        return TrialAnswer(self.name)

    async def prompt_tokens(self, request: Request) -> list[int]:
        return list(range(_NUM_TOKENS))

    async def locate(self, request: Request) -> LocatedPrompt | None:
        return self.located

    async def prep_recv(
        self, request: Request, end: int, *, prompt: Prompt | None = None
    ) -> PrepRecvResult:
        num_tokens = _length(request, prompt)
        end = end if end >= 0 else num_tokens + end
        return PrepRecvResult("trial", 0, num_tokens=end, end=end)

    async def remote_send(
        self,
        request: Request,
        received: PrepRecvResult,
        *,
        begin: int,
        end: int,
        prompt: Prompt | None = None,
    ) -> RemoteSendResult:
        return RemoteSendResult(end - begin)

    async def settle(self, request: Request, received: PrepRecvResult) -> None:
        pass

    async def pin(
        self, request: Request, price: float, ttl_s: float, *, prompt: Prompt | None = None
    ) -> int:
        return _length(request, prompt)

    async def start_generate(
        self,
        request: Request,
        begin: int,
        *,
        received: PrepRecvResult | None = None,
        prompt: Prompt | None = None,
        num_generated: int | None = None,
    ) -> RoutedAnswer:
        if request.path != CHAT or received is None:
            _length(request, prompt)
        return TrialAnswer(self.name)

    async def move(self, answer: RoutedAnswer, to: Engine) -> bool:
        return False


# the reason of a refusal ("'Engine' object has no attribute 'sendd'") has this name, and the author
# of a strategy knows no other one
TrialEngine.__name__ = "Engine"


def trial(route: Route) -> None:
    """Try ``route`` with two requests. Blocks; runs a loop of its own.

    Raises:
        InvalidArgument: it returns no answer.
        Exception: what it raises.
    """
    tree, keys = PageTree(), range(_NUM_TOKENS)
    tree.apply("trial-1", PageChange("trial", 0, None, 0, keys, ()))
    located = LocatedPrompt(list(keys), keys, 1, tree.matched(keys))
    engines: list[Engine] = [
        TrialEngine(f"trial-{number}", located) for number in range(_NUM_ENGINES)
    ]

    async def run() -> None:
        for path, fields in _REQUESTS:
            headers = [(b"content-type", b"application/json")]
            request = Request("POST", path, headers, msgspec.json.encode(fields), "trial")
            for offered in (engines, engines[:1]):
                why = why_no_answer(await route(request, offered))
                if why is not None:
                    raise InvalidArgument(why)

    asyncio.run(run())


def why_no_answer(found: object) -> str | None:
    """Return why ``found``, which a strategy has returned, is not the answer of an engine; None if
    it is."""
    try:
        if all(hasattr(found, name) for name in ("engine", "head", "read", "close")):
            return None
    except BaseException:  # a class of the strategy's own may raise anything, SystemExit too
        pass
    said = "nothing" if found is None else shown(found)
    return (
        f"it has returned {said} where an engine's answer was expected: end it with "
        "'return await engine.send(request)'"
    )


def _length(request: Request, prompt: Prompt | None) -> int:
    found = request.prompt if prompt is None else prompt
    if found is None:
        raise InvalidArgument("only a completion with one prompt can be divided between engines")
    return len(found)
