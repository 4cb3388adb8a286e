"""A stream that outlives its engine: when it breaks off, another engine goes on after it.

Owns the seam between two streams: when the present one is lost, how often another may follow, and
that pieces are examined before they are passed on. Must not know what the events mean, nor which
engine is next: subclasses do.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from quire.cluster.nodes.connection import Sink
from quire.cluster.passing.continuations import Cause, ContinuationWatcher, Outcome, Unwatched
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import UNREADABLE, EngineLost, QuireError

logger = logging.getLogger(__name__)

_MAYBE_LOST = b'"engine_lost"'
"""Part of what a node says, in any API, when it has lost its engine; in a generated text its quotes
would be escaped."""

_MAX_LOSSES = 8


@dataclass(frozen=True, slots=True)
class Continuation:
    """How an answer continues. ``ask`` begins the stream that follows the first ``num_tokens``
    tokens (of a program: messages) of the answer, or raises ``QuireError`` if no engine can."""

    ask: Callable[[], Awaitable[RoutedAnswer]]
    num_tokens: int


class OutlivingAnswer(ABC):
    """The answer to ``request``: the stream ``answer``, then the streams of other engines that
    continue it."""

    def __init__(self, answer: RoutedAnswer, request: Request) -> None:
        self.engine = answer.engine
        self.head = answer.head
        self.first = answer
        """The stream with which it began, which the strategy has returned."""
        self._answer = answer
        self._request = request
        self._sink: Sink | None = None
        self._held = b""
        """Bytes of the present stream that are no whole event yet."""
        self._num_resumed = 0
        self._num_lost = 0
        self._is_leaving = False
        self._has_lost_engine = False
        """Whether the node has reported it; the events before that report are passed on first."""
        self._is_over = False
        """Whether the last event has arrived."""
        self._unreadable: EngineLost | None = None
        """Why nothing can follow: the node has sent what is no event."""
        self.watcher: ContinuationWatcher = Unwatched()
        self._pause: tuple[Cause, float] | None = None
        """Why it is between two engines, and since when; None while it is not."""
        self._goes_on = False
        """Whether the stream that ends the pause has begun, and no piece of it has arrived."""

    @property
    def request(self) -> Request:
        return self._request

    @property
    def at(self) -> str:
        """The name of the engine whose stream is the present one."""
        return self._answer.engine

    @property
    @abstractmethod
    def prompt(self) -> list[int] | None:
        """The tokens of the prompt; None if they are not known."""

    @property
    @abstractmethod
    def generated(self) -> list[Sequence[int]] | None:
        """The tokens received so far, for each choice that still runs; None if the answer cannot go
        on elsewhere now."""

    async def read(self) -> bytes:
        try:
            return await self._read()
        except asyncio.CancelledError:  # its client has left
            self._continued("aborted")
            raise

    async def _read(self) -> bytes:
        while not self._is_over:
            if self._unreadable is not None:
                self._continued("failed")
                raise self._unreadable
            try:
                if self._has_lost_engine:
                    raise self._lost()
                piece = await self._answer.read()
                if self._is_over:  # ``_take`` has passed its last event on
                    return b""
                if self._unreadable is not None:
                    continue
                if not piece:
                    raise EngineLost(
                        f"node {self._answer.engine} has ended a stream before its end"
                    )
                if self._goes_on:
                    self._continued("done")
                events = self._readable(piece)
            except EngineLost as error:
                if self._unreadable is not None:
                    continue
                events = await self._go_on(error)
            if events:
                return events
        with suppress(EngineLost):  # a connection whose answer was read to its end is used again
            while await self._answer.read():
                pass
        return b""

    def pass_to(self, sink: Sink) -> None:
        self._sink = sink
        self._answer.pass_to(self._take)

    def close(self) -> None:
        self._answer.close()

    def leave(self) -> None:
        """Cut the present stream, so that the answer goes on at another engine. This may be done
        any number of times: only losses are counted."""
        self._is_leaving = True
        self._pauses("move")
        self._answer.close()

    @abstractmethod
    def _events(self, piece: bytes) -> bytes:
        """Return what the client is to receive of ``piece``; set ``_has_lost_engine`` if the node
        reports that behind it.

        Raises:
            EngineLost: it reports that, and the client is to receive nothing before it.
        """

    @abstractmethod
    def _ending(self) -> bytes:
        """Return the events that complete a stream of which only the end was lost; else nothing."""

    @abstractmethod
    def _continuation(self) -> Continuation | None:
        """Return how the answer goes on after what has arrived; None if it cannot."""

    def _whole_events(self, piece: bytes) -> list[bytes]:
        """Return the events that ``piece`` completes, without the empty line after each."""
        *whole, self._held = (self._held + piece).split(b"\n\n")
        return whole

    def _lost(self) -> EngineLost:
        return EngineLost(f"node {self._answer.engine} has lost its engine")

    def _take(self, piece: bytes) -> bool:
        """Pass ``piece`` on at once. Return False if the client cannot take it now, or if it may
        report a loss: then it waits for ``read``."""
        sink = self._sink
        if self._unreadable is not None:
            return True
        if sink is None or self._has_lost_engine or not sink(b""):
            return False
        if _MAYBE_LOST in self._held + piece:
            return False
        if self._goes_on:
            self._continued("done")
        if not self._is_over and (events := self._readable(piece)):
            sink(events)
        return True

    def _readable(self, piece: bytes) -> bytes:
        """Return ``_events``. If one cannot be read, nothing follows: some of what ``piece`` has
        told may be counted and not passed on, so another node would leave it out."""
        try:
            return self._events(piece)
        except UNREADABLE as exc:
            self._unreadable = EngineLost(
                f"node {self._answer.engine} has sent an event that cannot be read: {exc}"
            )
            self._answer.close()  # which wakes who reads it
            return b""

    def _pauses(self, cause: Cause) -> None:
        if self._pause is None:
            self._pause = cause, asyncio.get_running_loop().time()

    def _continued(self, outcome: Outcome) -> None:
        """Tell the watcher of the end of a pause, if there is one."""
        if self._pause is None:
            return
        (cause, since_s), self._pause, self._goes_on = self._pause, None, False
        pause_s = asyncio.get_running_loop().time() - since_s
        self.watcher.continued(cause, outcome, pause_s if outcome == "done" else None)

    async def _go_on(self, error: EngineLost) -> bytes:
        """Continue at another engine, or raise ``error``. If only the end was lost, return the
        events that complete the stream."""
        if ending := self._ending():
            self._is_over = True
            self._continued("stayed")
            return ending
        self._pauses("loss")
        is_loss, self._is_leaving = not self._is_leaving, False
        self._num_lost += is_loss
        following = None if self._num_lost > _MAX_LOSSES else self._continuation()
        if following is None:
            self._continued("failed")
            raise error
        self._answer.close()
        try:
            answer = await following.ask()
        except QuireError as exc:
            self._continued("failed")
            logger.warning("request %s cannot go on: %s", self._request.request_id, exc.message)
            raise EngineLost(f"{error.message}; {exc.message}") from exc
        logger.log(
            logging.WARNING if is_loss else logging.INFO,
            "request %s goes on at %s behind %d tokens: %s",
            self._request.request_id,
            answer.engine,
            following.num_tokens,
            error.message if is_loss else "it was moved there",
        )
        self._answer, self._held, self._has_lost_engine = answer, b"", False
        self._num_resumed += 1
        self._goes_on = self._pause is not None
        if self._sink is not None:
            answer.pass_to(self._take)
        return b""
