"""What a restartable program was answered is kept within bounds, and beyond them not repeated."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ProgramTerminated
from quire.programs.runtime import replay_log
from quire.programs.runtime.replay_log import Questions, RecordedQuestion


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
    first, counter = Questions(asked, "service"), Counter(answer)
    for number in range(5):
        assert await first.ask((f"{number}",), counter) == answer
    assert counter.num_asked == 5
    assert len(asked) == 3, "two, and the mark behind them"
    again = Questions(asked, "service")
    for number in range(2):
        assert await again.ask((f"{number}",), counter) == answer
    assert counter.num_asked == 5
    with pytest.raises(ProgramTerminated, match="more than is recorded"):
        await again.ask(("2",), counter)


async def test_an_incarnation_that_fills_the_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_log, "MAX_QUESTIONS", 2)
    asked: list[RecordedQuestion] = []
    counter = Counter()
    await Questions(asked, "service").ask(("0",), counter)
    second = Questions(asked, "service")
    for number in range(4):
        await second.ask((f"{number}",), counter)
    assert counter.num_asked == 4


async def test_what_is_asked_when_it_is_over_is_refused_and_not_recorded() -> None:
    """The cleaning up of a program whose engine was lost."""
    asked: list[RecordedQuestion] = []
    questions, counter = Questions(asked, "service"), Counter()
    await questions.ask(("0",), counter)
    questions.end()
    with pytest.raises(ProgramTerminated, match="begins again"):
        await questions.ask(("goodbye",), counter)
    assert counter.num_asked == 1
    again = Questions(asked, "service")
    assert [await again.ask((one,), counter) for one in ("0", "1")] == ["answer"] * 2
    assert [one.what for one in asked] == [("0",), ("1",)]


async def test_what_is_cut_off_by_the_end_is_asked_again() -> None:
    asked: list[RecordedQuestion] = []
    questions = Questions(asked, "service")

    async def cut_off() -> None:
        questions.end()
        raise ProgramTerminated("the program has ended")

    with pytest.raises(ProgramTerminated):
        await questions.ask(("0",), cut_off)
    assert await Questions(asked, "service").ask(("0",), Counter()) == "answer"
