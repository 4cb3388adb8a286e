"""Answers and results as messages: what templates of every dialect can show."""

from __future__ import annotations

import pytest

from quire.programs.chat import Answer, Call, Dialect, for_template, turn_messages

CALLS = (Call("a", "double", '{"n": 4}'), Call("b", "double", '{"n": 7}'))
ONE_BY_ONE = (Dialect.LLAMA, Dialect.HARMONY)


def test_an_answer_its_calls_and_their_results() -> None:
    said, first, second = turn_messages(Answer("Well.", "Hm.", CALLS), ["8", "14"])
    assert said == {
        "role": "assistant",
        "content": "Well.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "double", "arguments": {"n": 4}}},
            {"id": "b", "type": "function", "function": {"name": "double", "arguments": {"n": 7}}},
        ],
    }
    assert first == {"role": "tool", "name": "double", "tool_call_id": "a", "content": "8"}
    assert (second["tool_call_id"], second["content"]) == ("b", "14")
    assert turn_messages(Answer("Yes.", "", ()), []) == [{"role": "assistant", "content": "Yes."}]


DEEP = '{"n": ' + "[" * 100 + "]" * 100 + "}"
ENDLESS = '{"n": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    "arguments", ['{"n": ', "[1]", "4", DEEP, ENDLESS], ids=["cut", "list", "4", "deep", "endless"]
)
def test_arguments_that_are_no_object_stay_as_they_were_written(arguments: str) -> None:
    said, _ = turn_messages(Answer("", "", (Call("a", "double", arguments),)), ["error"])
    assert said["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("dialect", Dialect)
def test_one_call_in_a_message_where_templates_take_one(dialect: Dialect) -> None:
    user = {"role": "user", "content": "Go."}
    said, first, second = turn_messages(Answer("Well.", "Hm.", CALLS), ["8", "14"])
    told = list(for_template([user, said, second, first, user], dialect))
    if dialect not in ONE_BY_ONE:
        assert told == [user, said, second, first, user]
        return
    first_user, begin, result, more, other, last_user = told
    assert first_user == last_user == user
    assert begin == {**said, "tool_calls": said["tool_calls"][:1]}
    assert more == {"role": "assistant", "content": "", "tool_calls": said["tool_calls"][1:]}
    assert (result, other) == (first, second), "each behind its own call"


def test_nothing_is_lost_of_what_names_no_call() -> None:
    said, first, _ = turn_messages(Answer("", "", CALLS), ["8", "14"])
    stray = {"role": "tool", "content": "whose?"}
    told = for_template([said, stray, first], Dialect.LLAMA)
    assert [message.get("content") for message in told] == ["", "8", "", "whose?"]
    one = turn_messages(Answer("", "", CALLS[:1]), ["8"])
    assert for_template(one, Dialect.LLAMA) == one
