"""ReAct: the loop of thought, action and observation."""

from __future__ import annotations

import json

from library_run import run


async def test_react_calls_tools_in_one_context() -> None:
    def answer(prompt: str) -> str:
        if prompt.endswith("<|assistant|>"):
            return "Thought: Look.\nAction: lookup(Kabo, age)\nObservation:"
        if prompt.endswith("Observation: 31\n"):
            return "Thought: Add.\nAction: calc(31+5)\nObservation:"
        assert prompt.endswith("Observation: 36\n"), prompt
        return "Thought: I know.\nAnswer: 36<|end|>"

    records = json.dumps({"Kabo": {"age": 31}})
    result, messages, num_prompts = await run(
        "react", "What is the age of Kabo plus 5?", records, answer=answer
    )
    assert result == {
        "answer": "36",
        "ended": "answered",
        "steps": [
            {"action": "lookup(Kabo, age)", "observation": "31"},
            {"action": "calc(31+5)", "observation": "36"},
        ],
    }
    assert messages[0] == "Thought: Look.\nAction: lookup(Kabo, age)\n"
    assert num_prompts == 3


async def test_react_tells_the_model_what_went_wrong() -> None:
    said = iter(
        [
            "Action: fly(away)\nObservation:",
            "Action: calc(1+)\nObservation:",
            "Action: lookup(Nobody, age)\nObservation:",
            "Observation:",
            "I give up.<|end|>",
        ]
    )
    result, _, _ = await run("react", "What?", answer=lambda _: next(said))
    observations = [step["observation"] for step in result["steps"]]
    assert observations == [
        "error: no such action: fly(away)",
        "error: not an expression: '1+'",
        "not found",
        "error: no such action: ",
    ]
    assert (result["answer"], result["ended"]) == ("", "no answer")


async def test_react_says_that_a_turn_was_cut() -> None:
    result, _, _ = await run("react", "What?", answer=lambda _: "Thought: " + "hm " * 80)
    assert (result["answer"], result["ended"], result["steps"]) == ("", "cut", [])


async def test_react_ends_when_the_model_goes_round_in_circles() -> None:
    result, _, _ = await run("react", "What?", answer=lambda _: "Action: calc(1)\nObservation:")
    assert (result["ended"], len(result["steps"])) == ("out of turns", 8)
