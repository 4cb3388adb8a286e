"""An answer's text is told as it comes, and is at the end that of the whole answer."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.programs.workflow.execution.answer_text import FinalAnswerText, SaidText, behind


def told(mark: str | None, pieces: list[str]) -> list[SaidText]:
    text = FinalAnswerText(mark)
    found = [text.feed(piece) for piece in pieces] + [text.end()]
    return [one for one in found if one is not None]


def joined(said: list[SaidText]) -> str:
    text = ""
    for one in said:
        text = one.text if one.begins_again else text + one.text
    return text


@given(
    st.sampled_from([None, "A:", "aa", "aba"]),
    st.lists(st.text("abA: \n", max_size=5), max_size=12),
)
@example("aa", ["aa", "a"])
def test_what_is_told_is_the_answer_however_it_is_cut(mark: str | None, pieces: list[str]) -> None:
    assert joined(told(mark, pieces)) == behind(mark, "".join(pieces))


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (["Think. An", "swer: Ka", "bo", ". "], [SaidText("Ka"), SaidText("bo"), SaidText(".")]),
        (["Answer: no Ans", "wer: yes"], [SaidText("no"), SaidText("yes", begins_again=True)]),
        (["Answer: no ", "Answer:"], [SaidText("no"), SaidText("", begins_again=True)]),
        (["Answer: An", "d"], [SaidText("And")]),
        (["only ", "text"], [SaidText("only text")]),
        ([], []),
    ],
)
def test_text_is_told_as_soon_as_it_is_certain(pieces: list[str], said: list[SaidText]) -> None:
    assert told("Answer:", pieces) == said


def test_what_an_earlier_try_has_said_is_void() -> None:
    text = FinalAnswerText(None, begins_again=True)
    assert text.feed("new") == SaidText("new", begins_again=True)
    assert text.feed("er") == SaidText("er")


def test_without_a_mark_everything_is_told_at_once() -> None:
    assert told(None, [" a", " b", " "]) == [SaidText("a"), SaidText(" b")]
