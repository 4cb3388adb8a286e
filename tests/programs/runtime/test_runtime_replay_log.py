"""What a restartable program was answered is kept within bounds, and beyond them not repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.core.errors import ProgramTerminated
from quire.programs.runtime import replay_log
from quire.programs.runtime.arrivals import Arrival, ArrivalOrder
from quire.programs.runtime.replay_log import Questions, RecordedQuestion


def questions_of(asked: list[RecordedQuestion]) -> Questions:
    """The questions of another incarnation."""
    return Questions(asked, "service", ArrivalOrder(asked))


class Counter:
    """Answers, and counts how often it was asked."""

    def __init__(self, answer: Any = "answer") -> None:
        self.answer = answer
        self.num_asked = 0

    async def __call__(self) -> Any:
        self.num_asked += 1
        return self.answer


@pytest.mark.parametrize(
    ("name", "limit", "answer"),
    [
        ("MAX_QUESTIONS", 2, "answer"),
        ("MAX_ANSWERED_BYTES", 18, {"messages": ["12345"]}),
    ],
)
async def test_what_is_not_kept_is_carried_out_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: int, answer: Any
) -> None:
    monkeypatch.setattr(replay_log, name, limit)
    asked: list[RecordedQuestion] = []
    first, counter = questions_of(asked), Counter(answer)
    for number in range(5):
        assert await first.ask((f"{number}",), counter) == answer
    assert counter.num_asked == 5
    assert len(asked) == 3, "two, and the mark behind them"
    again = questions_of(asked)
    for number in range(2):
        assert await again.ask((f"{number}",), counter) == answer
    assert counter.num_asked == 5
    with pytest.raises(ProgramTerminated, match="more than is recorded"):
        await again.ask(("2",), counter)


async def test_an_incarnation_that_fills_the_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_log, "MAX_QUESTIONS", 2)
    asked: list[RecordedQuestion] = []
    counter = Counter()
    await questions_of(asked).ask(("0",), counter)
    second = questions_of(asked)
    for number in range(4):
        await second.ask((f"{number}",), counter)
    assert counter.num_asked == 4


async def test_what_is_asked_when_it_is_over_is_refused_and_not_recorded() -> None:
    """The cleaning up of a program whose engine was lost."""
    asked: list[RecordedQuestion] = []
    questions, counter = questions_of(asked), Counter()
    await questions.ask(("0",), counter)
    questions.end()
    with pytest.raises(ProgramTerminated, match="begins again"):
        await questions.ask(("goodbye",), counter)
    assert counter.num_asked == 1
    again = questions_of(asked)
    assert [await again.ask((one,), counter) for one in ("0", "1")] == ["answer"] * 2
    assert [one.what for one in asked] == [("0",), ("1",)]


async def test_what_is_cut_off_by_the_end_is_asked_again() -> None:
    asked: list[RecordedQuestion] = []
    questions = questions_of(asked)

    async def cut_off() -> None:
        questions.end()
        raise ProgramTerminated("the program has ended")

    with pytest.raises(ProgramTerminated):
        await questions.ask(("0",), cut_off)
    assert await questions_of(asked).ask(("0",), Counter()) == "answer"


async def _side_by_side(questions: Questions, answers: Any, said: list[str]) -> None:
    """Run two tasks, each of which asks its next question after the answer to the one before."""

    async def task(name: str) -> None:
        for number in range(3):
            answer = await questions.ask((name, number), lambda: answers(name))
            said.append(answer)

    await asyncio.gather(task("a"), task("b"))


async def test_tasks_side_by_side_go_on_as_at_first() -> None:
    asked: list[RecordedQuestion] = []
    events = {name: asyncio.Event() for name in "ab"}

    async def live(name: str) -> str:
        await events[name].wait()
        events[name].clear()
        return name

    said: list[str] = []
    running = asyncio.create_task(_side_by_side(questions_of(asked), live, said))
    for name in "bbaba":
        events[name].set()
        for _ in range(8):
            await asyncio.sleep(0)
    assert said == list("bbaba")
    running.cancel()
    again: list[str] = []

    async def at_once(name: str) -> str:
        return name

    async with asyncio.timeout(60):  # the last answer comes now, behind all others
        await _side_by_side(questions_of(asked), at_once, again)
    assert again == list("bbabaa")
    assert [entry.rank for entry in asked] != sorted(entry.rank or 0 for entry in asked)


async def test_what_the_program_waits_for_no_more_holds_up_nothing() -> None:
    asked = [
        RecordedQuestion(("a",), "one", answered=True, rank=1),
        RecordedQuestion(("b",), "two", answered=True, rank=0, num_acts=3),
        RecordedQuestion(("c",), "three", answered=True, rank=2, num_acts=3),
    ]
    questions = questions_of(asked)
    waiting = [asyncio.create_task(questions.ask((name,), Counter())) for name in "ab"]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[1].cancel()
    async with asyncio.timeout(60):
        assert await waiting[0] == "one"
        assert await questions.ask(("c",), Counter()) == "three"


async def test_answers_that_wait_side_by_side_are_not_looked_at_again_for_each_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num, looks, may_come = 200, 0, ArrivalOrder.may_come

    def counted(arrivals: ArrivalOrder, arrival: Arrival) -> bool:
        nonlocal looks
        looks += 1
        return may_come(arrivals, arrival)

    monkeypatch.setattr(ArrivalOrder, "may_come", counted)
    asked = [
        RecordedQuestion((place,), place, answered=True, rank=num - place, num_acts=num)
        for place in range(num)
    ]
    questions, counter = questions_of(asked), Counter()
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(questions.ask((place,), counter) for place in range(num)))
    assert found == list(range(num))
    assert looks < 8 * num
