"""What the host does for a guest besides giving it turns: HTTP, waking it, its log, its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec
import pytest

from quire.core.calls import AskService
from quire.core.errors import InvalidArgument
from quire.core.ids import ProgramId
from quire.core.quotas import Quotas
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.host.hosting import GuestHost
from quire.programs.sandbox.host.service_questions import ServiceQuestions
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.wasm.engine import GuestTrapped
from quire.programs.services.network import Network

LAUNCH = m.GuestLaunch(
    program=ProgramId(1),
    args=(),
    models=(),
    quotas=Quotas(),
    seed=1,
    mailbox_capacity=1,
    mailbox_limit=1,
    max_message_bytes=1,
    grace_s=1.0,
)


class Asking:
    """A runner that makes ``calls`` in its first turn, and keeps what it is woken with."""

    cpu_ns = 0
    memory_bytes: int | None = 1 << 20

    def __init__(self, *calls: m.GuestCalls, wake_in_s: float | None = None) -> None:
        self._first = m.Turn(list(calls), wake_in_s)
        self.events: list[m.GuestEvents] = []
        self.woken = asyncio.Event()
        self.answers: Answers

    def attach(self, answers: Answers) -> None:
        self.answers = answers

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
        return self._first

    def wake(self, events: Sequence[m.GuestEvents], limit_s: float) -> m.Turn:
        self.events += events
        self.woken.set()
        return m.Turn([])

    def close(self) -> None:
        pass


class Spinning(Asking):
    """A runner that the turn's limit has interrupted."""

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
        raise GuestTrapped("interrupted", interrupted=True)


class Said:
    """``Report`` that keeps lines of log, and the error with which a guest has ended."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []
        self.error: dict[str, Any] = {}
        self.has_ended = asyncio.Event()

    def calls(self, guest: int, calls: msgspec.Raw) -> None:
        for call in msgspec.msgpack.decode(calls):
            if call[0] == "Ended":
                self.error = call[3]
                self.has_ended.set()

    def log(self, guest: int, level: str, text: str, fields: Mapping[str, Any]) -> None:
        self.lines.append((level, text, fields))

    def spent(self, guest: int, cpu_ns: int, memory_bytes: int | None) -> None:
        pass

    def round_ended(self) -> None:
        pass


Start = Callable[..., None]


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
async def start(said: Said) -> AsyncIterator[Start]:
    """``start(runner, limits)``: a guest whose requests are answered with what was asked."""

    def answer(request: httpx.Request) -> httpx.Response:
        text = f"{request.method} {request.url.path} {request.content.decode()}"
        return httpx.Response(201, text=text, headers={"x-said": request.headers.get("x-a", "")})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        host = GuestHost(asyncio.get_running_loop(), said)

        def begin(runner: Asking, limits: GuestLimits | None = None) -> None:
            host.start(
                1,
                "guest",
                lambda: runner,
                LAUNCH,
                limits=limits or GuestLimits(),
                network=lambda: Network(client),
                models={},
            )

        yield begin
        await host.close()


async def test_a_request_is_made_as_it_was_asked_for(start: Start) -> None:
    runner = Asking(m.Fetch(7, "POST", "http://far.example/place", b"body", {"x-a": "b"}))
    start(runner)
    await runner.woken.wait()
    (fetched,) = runner.events
    assert isinstance(fetched, m.Fetched)
    assert (fetched.request, fetched.status) == (7, 201)
    assert fetched.body == b"POST /place body"
    assert fetched.headers["x-said"] == "b"


async def test_a_streamed_response_is_opened_and_the_guest_hears_of_it(start: Start) -> None:
    arguments = {"method": "POST", "url": "http://far.example/x", "content": b"1", "headers": {}}
    runner = Asking(AskService(3, "http.open", arguments))
    start(runner)
    await runner.woken.wait()
    (answered,) = runner.events
    assert isinstance(answered, m.ServiceAnswered)
    assert (answered.number, answered.value["status"]) == (3, 201)


async def test_a_guest_is_woken_when_it_wants_to_be(start: Start) -> None:
    runner = Asking(wake_in_s=0.001)
    start(runner)
    await runner.woken.wait()
    assert runner.events == [m.TimeCome()]


async def test_a_guest_that_computes_for_too_long_is_told_how_long_it_may(
    start: Start, said: Said
) -> None:
    start(Spinning(), GuestLimits(turn_ms=250))
    await said.has_ended.wait()
    assert said.error["code"] == "quota_exceeded"
    assert "'guest' computed for 250 ms without awaiting" in said.error["message"]


async def test_a_log_ends_with_a_line_that_says_so(start: Start, said: Said) -> None:
    runner = Asking(wake_in_s=0.0)
    start(runner, GuestLimits(log_bytes=10))
    await runner.woken.wait()
    for text in ("12345678", "and more", "and more"):
        runner.answers('["log","info","' + text + '"]')
    first, last = said.lines
    assert first == ("info", "12345678", {})
    assert last == ("error", "the program has printed 10 bytes; the rest is dropped", {})


async def test_a_number_in_a_log_that_no_message_can_hold_becomes_its_digits(
    start: Start, said: Said
) -> None:
    runner = Asking(wake_in_s=0.0)
    start(runner)
    await runner.woken.wait()
    most = {"a": 10**30, "b": [-(10**30), 1 << 63], "c": -(1 << 63), "d": 1.5}
    runner.answers(json.dumps(["log", "info", "so many", most]))
    ((_, _, fields),) = said.lines
    assert fields == {"a": str(10**30), "b": [str(-(10**30)), 1 << 63], "c": -(1 << 63), "d": 1.5}
    assert msgspec.msgpack.encode(fields)


async def test_a_refusal_and_a_fault_go_to_the_question_that_they_answer() -> None:
    async def ask(question: AskService) -> Any:
        if question.name == "refused":
            raise InvalidArgument("not so")
        raise KeyError("a fault of the node")

    told: asyncio.Queue[m.GuestEvents] = asyncio.Queue()
    questions = ServiceQuestions("guest", ask, told.put_nowait)
    questions.start(AskService(4, "refused", {}))
    questions.start(AskService(9, "faulty", {}))
    refused, faulty = await told.get(), await told.get()
    assert isinstance(refused, m.ServiceRefused)
    assert (refused.number, refused.error.code) == (4, "invalid_argument")
    assert isinstance(faulty, m.ServiceRefused)
    assert (faulty.number, faulty.error.message) == (9, "faulty failed in the node: KeyError")


async def test_what_needs_no_answer_is_waited_for_at_the_end() -> None:
    may_end, has_ended = asyncio.Event(), asyncio.Event()

    async def ask(question: AskService) -> Any:
        await may_end.wait()
        has_ended.set()

    questions = ServiceQuestions("guest", ask, lambda event: None)
    await questions.settled(60.0)  # there is none
    questions.start(AskService(0, "queue.pull.undo", {}))
    settled = asyncio.create_task(questions.settled(60.0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not settled.done()
    may_end.set()
    await settled
    assert has_ended.is_set()
