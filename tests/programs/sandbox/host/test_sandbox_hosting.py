"""The host of guests whose runners misbehave: whatever one does, the others go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest

from quire.core.errors import ErrorRecord, InvalidArgument
from quire.core.ids import ProgramId
from quire.core.quotas import Quotas
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.host.hosting import GuestHost
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.python.runner import PythonRunner
from quire.programs.services.network import Network

DEEP = "[" * 100_000 + "]" * 100_000
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


class ScriptedRunner:
    """``Runner`` that does ``on_wake`` in every turn but the first."""

    cpu_ns = 0
    memory_bytes: int | None = 1 << 20

    def __init__(self, on_wake: Callable[[], m.Turn]) -> None:
        self._on_wake = on_wake

    def attach(self, answers: Answers) -> None:
        pass

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
        return m.Turn([])

    def wake(self, events: Sequence[m.GuestEvents], limit_s: float) -> m.Turn:
        return self._on_wake()

    def close(self) -> None:
        pass


class Said:
    """``Report`` that keeps the names of calls by guest."""

    def __init__(self) -> None:
        self.names: dict[int, list[str]] = {}
        self.spendings: dict[int, tuple[int, int | None]] = {}
        self.by_two = asyncio.Event()

    def calls(self, guest: int, calls: msgspec.Raw) -> None:
        names = [call[0] for call in msgspec.msgpack.decode(calls)]
        self.names.setdefault(guest, []).extend(names)
        if len(self.names) == 2:
            self.by_two.set()

    def log(self, guest: int, level: str, text: str, fields: Mapping[str, Any]) -> None:
        pass

    def spent(self, guest: int, cpu_ns: int, memory_bytes: int | None) -> None:
        self.spendings[guest] = cpu_ns, memory_bytes

    def round_ended(self) -> None:
        pass


class TextGuest:
    """A Python guest that answers everything with ``text``."""

    cpu_ns = 0

    def __init__(self, text: str) -> None:
        self._text = text

    def inspect(self, source: str, limit_s: float) -> str:
        return self._text

    def load(self, source: str, compiled: str, launch: str, limit_s: float) -> str:
        return self._text


@pytest.mark.asyncio
async def test_a_guest_that_finds_a_fault_of_ours_ends_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fault() -> m.Turn:
        raise AttributeError("no such thing")

    said = Said()
    async with httpx.AsyncClient() as client:
        host = GuestHost(asyncio.get_running_loop(), said)
        for number, on_wake in ((1, fault), (2, lambda: m.Turn([m.Send("here")]))):
            host.start(
                number,
                f"guest {number}",
                partial(ScriptedRunner, on_wake),
                LAUNCH,
                limits=GuestLimits(),
                network=Network(client),
                models={},
            )
            host.tell(number, [m.InputClosed()])
        await said.by_two.wait()
        assert said.names == {1: ["Ended"], 2: ["Send"]}
        assert said.spendings == {1: (0, 1 << 20)}, "of the one that has ended"
        assert "AttributeError: no such thing" in caplog.text
        await host.close()


class Steps:
    """A clock that each look at moves on by ``step_s``."""

    def __init__(self, step_s: float) -> None:
        self._now_s = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


@pytest.mark.parametrize(
    ("step_s", "order"),
    [
        (1e-6, ["1 begins", "2 begins", "3 begins", "1 goes on", "2 goes on", "3 goes on"]),
        # here a round is over after a single turn
        (1.0, ["1 begins", "1 goes on", "2 begins", "2 goes on", "3 begins", "3 goes on"]),
    ],
)
@pytest.mark.asyncio
async def test_guests_begin_before_others_go_on_and_nobody_starves(
    step_s: float, order: list[str]
) -> None:
    turns: list[str] = []
    all_done = asyncio.Event()

    class Noting(ScriptedRunner):
        def __init__(self, number: int) -> None:
            super().__init__(lambda: self.note("goes on"))
            self.number = number

        def note(self, what: str) -> m.Turn:
            turns.append(f"{self.number} {what}")
            if len(turns) == len(order):
                all_done.set()
            return m.Turn([], 0.0 if what == "begins" else None)

        def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
            return self.note("begins")

    async with httpx.AsyncClient() as client:
        host = GuestHost(asyncio.get_running_loop(), Said(), clock=Steps(step_s))
        for number in range(1, 4):
            host.start(
                number,
                f"guest {number}",
                partial(Noting, number),
                LAUNCH,
                limits=GuestLimits(),
                network=lambda: Network(client),
                models={},
            )
        await all_done.wait()
        await host.close()
    assert turns == order


class Computing(ScriptedRunner):
    """Takes ``turn_ms`` of processor time in its first turn and in each other one."""

    def __init__(self, turn_ms: int) -> None:
        super().__init__(lambda: self.compute())
        self.turn_ms = turn_ms

    def compute(self) -> m.Turn:
        self.cpu_ns += self.turn_ms * 1_000_000
        return m.Turn([m.Send("done")])

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
        return self.compute()


class Ends:
    """``Report`` that keeps errors by guest, and lets ``settled`` know of each call."""

    def __init__(self) -> None:
        self.errors: dict[int, str] = {}
        self.spendings: dict[int, tuple[int, int | None]] = {}
        self.num_calls = 0
        self.news = asyncio.Event()

    def calls(self, guest: int, calls: msgspec.Raw) -> None:
        self.num_calls += 1
        self.news.set()
        for call in msgspec.msgpack.decode(calls):
            if call[0] == "Ended":
                self.errors[guest] = call[3]["message"]

    def log(self, guest: int, level: str, text: str, fields: Mapping[str, Any]) -> None:
        pass

    def spent(self, guest: int, cpu_ns: int, memory_bytes: int | None) -> None:
        self.spendings[guest] = cpu_ns, memory_bytes

    def round_ended(self) -> None:
        pass

    async def heard(self, num_calls: int) -> None:
        while self.num_calls < num_calls:
            self.news.clear()
            await self.news.wait()


@pytest.mark.asyncio
async def test_the_guests_of_a_family_share_its_processor_time() -> None:
    ends = Ends()
    async with httpx.AsyncClient() as client:
        host = GuestHost(asyncio.get_running_loop(), ends)

        def start(number: int, family: tuple[int, int] | None, cpu_ms: int = 10_000) -> None:
            host.start(
                number,
                f"guest {number}",
                partial(Computing, 600),
                LAUNCH,
                limits=GuestLimits(cpu_ms=cpu_ms),
                network=lambda: Network(client),
                models={},
                family=family,
            )

        start(1, (5, 1000))
        await ends.heard(1)
        start(2, (5, 1000))  # 400 ms are left
        await ends.heard(2)
        host.tell(1, [m.InputClosed()])
        start(3, (5, 1000))
        start(4, (6, 1000))
        start(5, None, cpu_ms=500)
        await ends.heard(6)
        assert sorted(ends.errors) == [1, 3], "guests of that family which wanted another turn"
        assert "used 1000 ms of processor time" in ends.errors[1]
        host.tell(5, [m.InputClosed()])
        await ends.heard(7)
        assert "has used 500 ms of processor time" in ends.errors[5]
        host.stop(2, ErrorRecord("cancelled", "it ends"))
        start(6, (5, 1000))  # what the ended ones computed still counts
        await ends.heard(9)
        assert "used 1000 ms of processor time" in ends.errors[6]
        assert ends.spendings[2] == (600_000_000, 1 << 20), "one that was stopped, too"
        await host.close()


@pytest.mark.parametrize("text", [f'{{"calls":[],"more":{DEEP}}}', f'{{"calls":{DEEP}}}'])
def test_an_answer_nested_too_deep_is_refused(text: str) -> None:
    runner = PythonRunner(TextGuest(text), "", "", turn_bytes=1 << 20)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        runner.begin(LAUNCH, 1.0)
    with pytest.raises(InvalidArgument):
        runner.inspect(1.0)


def test_half_a_surrogate_pair_in_the_log_can_be_sent_on() -> None:
    lines: list[str] = []
    answers = Answers({}, lambda level, text, fields: lines.append(text))
    assert json.loads(answers('["log","info","half \\ud800 of it"]'))["error"] is None
    assert lines == ["half ? of it"]
    msgspec.msgpack.encode(lines)


def test_a_question_of_half_a_surrogate_pair_is_answered() -> None:
    answers = Answers({}, lambda level, text, fields: None)
    assert json.loads(answers('["\\ud800"]'))["error"]["code"] == "invalid_argument"
    assert json.loads(answers('["tokenize","\\ud800","x",true]'))["error"] is not None
