"""A guest's side of its connections: the port to control, messages to the client, the network.

All append calls to one list, which is sent at the end of the turn. Must not know how the list is
sent.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from quire.core.calls import AskService, DropAnswer, QueueCall
from quire.core.errors import (
    ErrorRecord,
    MailboxClosed,
    MailboxFull,
    QuireError,
    from_record,
)
from quire.core.interfaces import ServedModel
from quire.core.system_clock import SystemClock
from quire.programs.api import Issuer
from quire.programs.inferlet import Inferlet
from quire.programs.sandbox import messages as m
from quire.programs.services.mailbox import (
    MailboxChannel,
    MailboxLimits,
    SentMessage,
    check_message,
)
from quire.programs.services.network import HttpReply

Say = Callable[[m.GuestCalls], None]


class GuestPort:
    """``ProgramPort`` of the one program in this guest."""

    def __init__(self, say: Say, launch: m.GuestLaunch, models: Sequence[ServedModel]) -> None:
        self._say = say
        self.program = launch.program
        self.quotas = launch.quotas
        self.seed = launch.seed
        self.clock = SystemClock()
        self.first_number = 1
        self._models = tuple(models)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._undo: dict[int, tuple[str, Mapping[str, Any]]] = {}

    def models(self) -> Sequence[ServedModel]:
        return self._models

    def post(self, call: QueueCall) -> None:
        self._say(call)

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        number, arguments = question.number, _by_name(question.arguments)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._say(AskService(number, question.name, arguments))
        try:
            return await future
        except asyncio.CancelledError:
            if undo is not None:
                self._undo[number] = undo, arguments
            if future.cancelled():
                self._say(DropAnswer(number))
            elif future.exception() is None:  # cancelled after its arrival, before it was read
                self._take_back(number, future.result())
            raise
        finally:
            del self._waiting[number]

    def answered(self, number: int, value: Any) -> None:
        """Deliver an answer. If the program no longer waits for it, undo its effect if possible."""
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(value)
        else:
            self._take_back(number, value)

    def _take_back(self, number: int, value: Any) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            name, arguments = undo
            self._say(AskService(0, name, {**arguments, "answer": value}))

    def refused(self, number: int, error: ErrorRecord) -> None:
        self._undo.pop(number, None)
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_exception(from_record(error))

    def close(self, reason: str = "finished") -> None:
        """Do nothing: the host closes the real port when the program has ended in any way."""


def _by_name(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with ``Inferlet`` values replaced by names, by which the node finds
    programs."""
    return {
        key: value.name if isinstance(value, Inferlet) else value
        for key, value in arguments.items()
    }


class ToClient:
    """The outgoing half of the mailbox: counts the messages that the client has not read."""

    def __init__(self, say: Say, name: str, limits: MailboxLimits) -> None:
        self._say = say
        self._name = name
        self._limits = limits
        self._num_waiting = 0
        self._writers: list[asyncio.Future[None]] = []
        self._closed: str | None = None

    def send(self, message: str) -> SentMessage:
        """See ``MailboxChannel.send``."""
        if self._closed is not None:
            raise MailboxClosed(f"{self._name}: {self._closed}; nothing more can be sent")
        check_message(message, self._name, self._limits)
        if self._num_waiting >= self._limits.limit:
            raise MailboxFull(
                f"{self._name}: {self._num_waiting} messages wait for the reader: "
                "await send() to keep its pace",
                limit=self._limits.limit,
            )
        self._num_waiting += 1
        self._say(m.Send(message))
        return SentMessage(self._wait_for_room)

    def _wait_for_room(self) -> Generator[Any, None, None]:
        while self._closed is None and self._num_waiting >= self._limits.capacity:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.append(future)
            yield from future

    def taken(self, count: int) -> None:
        self._num_waiting -= count
        self._wake()

    def close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
        self._wake()

    def _wake(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            if not future.done():
                future.set_result(None)


class FromClient(MailboxChannel):
    """The incoming half: reports to the host how many messages were read, so that it sends more."""

    def __init__(self, say: Say, name: str, limits: MailboxLimits) -> None:
        super().__init__(name, limits)
        self._say = say

    async def receive(self) -> str:
        message = await super().receive()
        self._say(m.Received(1))
        return message


class GuestMailbox:
    """Both halves; used in a guest instead of ``Mailbox``."""

    def __init__(self, say: Say, program_name: str, limits: MailboxLimits) -> None:
        self.to_client = ToClient(say, f"messages of {program_name!r} to its client", limits)
        self.to_program = FromClient(say, f"messages of the client to {program_name!r}", limits)

    def close(self, reason: str) -> None:
        self.to_client.close(reason)
        self.to_program.close(reason)


class GuestStream:
    """A streamed HTTP response at the host; used in a guest instead of ``HttpStream``."""

    def __init__(self, issuer: Issuer, opened: dict[str, Any]) -> None:
        self.status: int = opened["status"]
        self.headers: Mapping[str, str] = opened["headers"]
        self._issuer = issuer
        self._stream: int | None = opened["stream"]
        self._ended = False

    async def read(self) -> bytes | None:
        if self._ended:
            return None
        try:
            part = await self._issuer.ask("http.read", stream=self._stream)
        except BaseException:
            self._ended = True
            raise
        self._ended = part is None
        return None if part is None else base64.b64decode(part)

    async def close(self) -> None:
        self._ended = True
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await self._issuer.ask("http.close", stream=stream)


class GuestNetwork:
    """HTTP through the host, which applies the policy; used in a guest instead of ``Network``."""

    issuer: Issuer

    def __init__(self, say: Say) -> None:
        self._say = say
        self._waiting: dict[int, asyncio.Future[HttpReply]] = {}
        self._num_requests = 0

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        self._num_requests += 1
        number = self._num_requests
        future: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        named = None if headers is None else dict(headers)
        self._say(m.Fetch(number, method, url, content, named))  # type: ignore[arg-type]
        try:
            return await future
        finally:
            del self._waiting[number]

    async def open(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> GuestStream:
        named = None if headers is None else dict(headers)
        opened = await self.issuer.ask(
            "http.open", method=method, url=url, content=content, headers=named
        )
        return GuestStream(self.issuer, opened)

    def fetched(self, event: m.Fetched) -> None:
        reply = HttpReply.made(event.text, event.status, event.headers, event.body)
        self._end(event.request, reply)

    def failed(self, request: int, error: ErrorRecord) -> None:
        self._end(request, from_record(error))

    def _end(self, request: int, outcome: HttpReply | QuireError) -> None:
        future = self._waiting.get(request)
        if future is None or future.done():
            return  # the program no longer waits for it
        if isinstance(outcome, HttpReply):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
