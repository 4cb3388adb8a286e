"""Answers that end with a tool call, whose client comes back with the tool's result.

Owns how such an answer is recognised, and the work that strategies do until the client returns.
Must not know what that work is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from quire.cluster.engines.interfaces import Engine, Idle
from quire.cluster.engines.strategy_errors import is_ending
from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request

logger = logging.getLogger(__name__)

Callback = Callable[[], None]

_MAX_AT_ONCE = 16
_MAX_MARK_BYTES = 64
_MARKS = {
    "/v1/chat/completions": (b'"finish_reason":"tool_calls"', b'"finish_reason": "tool_calls"'),
    "/v1/messages": (b'"stop_reason":"tool_use"', b'"stop_reason": "tool_use"'),
    "/v1/responses": (b'"type":"function_call"', b'"type": "function_call"'),
}
"""How an answer shows that it calls a tool. In a generated text the quotes would be escaped."""


class ToolCalls:
    """Calls ``idle`` of strategies after answers that call tools, of at most 16 at once."""

    def __init__(self) -> None:
        self._working: set[asyncio.Task[None]] = set()

    def watched(
        self, opened: OpenedAnswer, request: Request, idle: Idle, engines: Sequence[Engine]
    ) -> OpenedAnswer:
        """Return ``opened`` so that ``idle`` is called at its end if it has called a tool."""
        marks = _MARKS.get(request.path)
        if marks is None:
            return opened
        watch = _Watch(marks, lambda: self._begin(request, idle, engines))
        watch.see(opened.first)
        if opened.is_whole:
            watch.end()
            return opened
        return OpenedAnswer(_WatchedAnswer(opened.answer, watch), opened.first, is_whole=False)

    def _begin(self, request: Request, idle: Idle, engines: Sequence[Engine]) -> None:
        if len(self._working) < _MAX_AT_ONCE:
            task = asyncio.create_task(_work(request, idle, engines))
            self._working.add(task)
            task.add_done_callback(self._working.discard)


async def _work(request: Request, idle: Idle, engines: Sequence[Engine]) -> None:
    """Run ``idle``; log its failure, since nothing awaits its result."""
    again = Request(request.method, request.target, request.headers, request.body, "idle")
    again.pages = request.pages
    try:
        await idle(again, engines)
    except BaseException as exc:  # it may raise anything: SystemExit would end the router
        if is_ending(exc):
            raise
        logger.exception("request %s: the strategy's 'idle' has failed", request.request_id)
    finally:
        again.work.end()


class _Watch:
    """Looks for ``marks`` in pieces; ``on_end`` is called once, if there was one."""

    def __init__(self, marks: tuple[bytes, ...], on_end: Callback) -> None:
        self._marks = marks
        self._on_end: Callback | None = on_end
        self._tail = b""
        self._is_found = False

    def see(self, piece: bytes) -> None:
        if not self._is_found:
            text = self._tail + piece
            self._is_found = any(mark in text for mark in self._marks)
            self._tail = text[-_MAX_MARK_BYTES:]

    def end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if self._is_found and on_end is not None:
            on_end()


class _WatchedAnswer:
    """``answer``, whose pieces ``watch`` examines."""

    def __init__(self, answer: RoutedAnswer, watch: _Watch) -> None:
        self._answer = answer
        self._watch = watch

    @property
    def engine(self) -> str:
        return self._answer.engine

    @property
    def head(self) -> AnswerHead:
        return self._answer.head

    async def read(self) -> bytes:
        piece = await self._answer.read()
        if piece:
            self._watch.see(piece)
        else:
            self._watch.end()
        return piece

    def pass_to(self, sink: Sink) -> None:
        def passed(piece: bytes) -> bool:
            if not sink(piece):
                return False
            self._watch.see(piece)
            return True

        self._answer.pass_to(passed)

    def close(self) -> None:
        self._answer.close()
