"""Votes, recursion, graphs, skeletons: against plain arithmetic and the oracle of the fake model.

The fake engine's model is a hash of all that a token saw, so a fork that saw anything else than its
own text gives other tokens than the oracle, which has neither pages nor forks.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from library_run import run
from programs_node import node_of, node_saying

from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.library.answers import GREEDY, commonest, final_answer
from quire.programs.library.reasoning.graph_of_thought import ThoughtGraph
from quire.programs.library.reasoning.inverse_check import inverse, undoes
from quire.programs.library.reasoning.recursion_of_thought import Recursion
from quire.programs.library.reasoning.skeleton_of_thought import points_of, side_by_side
from quire.programs.sdk import temperature
from quire.testing import FakeTokenizer, expected_tokens

TOKENIZER = FakeTokenizer()
PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 4, 16])


def chat(question: str, system: str = "") -> str:
    """The fake model's chat format."""
    before = f"<|system|>{system}<|end|>" if system else ""
    return f"{before}<|user|>{question}<|end|><|assistant|>"


def oracle(prompt: str, max_tokens: int, sampler: SamplerSpec = GREEDY) -> str:
    """What plain decoding says, by the reference without pages."""
    stop = StopSpec(max_tokens, token_ids=TOKENIZER.eos_token_ids)
    tokens = expected_tokens(TOKENIZER.encode(prompt), stop, sampler=sampler)
    return TOKENIZER.decode(tokens, skip_special=True)


def calculator(prompt: str) -> str:
    """A model that knows sums and differences of two numbers, and nothing else."""
    question = prompt.rpartition("<|user|>")[2].partition("<|end|>")[0]
    found = re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", question)
    assert found is not None, f"a question that is no smallest part: {question}"
    first, second = int(found[1]), int(found[3])
    return f"Answer: {first + second if found[2] == '+' else first - second}<|end|>"


# -- answers ---------------------------------------------------------------------------------------


def test_the_final_answer_is_behind_the_last_mark() -> None:
    assert final_answer("Answer: 1\nno.\nAnswer: 2 ") == "2"
    assert final_answer("I give up") == ""


def test_the_commonest_answer_was_given_first_among_equals() -> None:
    assert commonest(["7", "8", "8", "7", "", "", ""]) == "7"
    assert commonest(["7", "8", "8"]) == "8"
    assert commonest(["", ""]) == ""


@given(st.integers(0, 99999), st.integers(0, 99999), st.sampled_from("+-"), st.integers(-3, 3))
def test_the_inverse_comes_back_exactly_for_right_answers(
    first: int, second: int, operator: str, error: int
) -> None:
    right = first + second if operator == "+" else first - second
    undone = inverse(f"What is {first} {operator} {second}?", str(right + error))
    assert undone is not None
    problem, expected = undone
    assert (eval(problem) == int(expected)) is (error == 0)
    if right + error >= 0 or operator == "-":
        assert re.fullmatch(r"\d+ [+-] \d+", problem), "the model knows no signs"


@pytest.mark.parametrize(
    ("question", "answer"), [("What is 1 + 2 + 3?", "6"), ("Who?", "6"), ("1 + 2", "three")]
)
def test_what_has_no_inverse_is_not_accepted(question: str, answer: str) -> None:
    assert inverse(question, answer) is None


async def test_the_model_undoes_its_answer() -> None:
    node, script = node_saying(calculator)

    async def main(api: Any) -> list[bool]:
        return [await undoes(api, "What is 5 - 9?", answer) for answer in ("-4", "-5", "x")]

    async with node:
        assert await node.run(main) == [True, False, False]
    assert [calculator(prompt) for prompt in script.prompts] == [
        "Answer: 9<|end|>",
        "Answer: 10<|end|>",
    ]


# -- self-consistency ------------------------------------------------------------------------------


@PAGE_SIZES
async def test_every_voice_is_a_decoding_of_its_own(page_size: int) -> None:
    result, _, _ = await run("self_consistency", "Why?", "4", "0.9", "24", page_size=page_size)
    samplers = [GREEDY, *(temperature(0.9, seed=seed) for seed in (1, 2, 3))]
    assert result["texts"] == [oracle(chat("Why?"), 24, sampler) for sampler in samplers]
    assert len(set(result["texts"])) > 1


async def test_one_voice_is_plain_decoding() -> None:
    result, _, _ = await run("self_consistency", "Why?", "1", "0.9", "24")
    assert result["texts"] == [oracle(chat("Why?"), 24)]


async def test_the_vote_is_on_final_answers() -> None:
    result, _, _ = await run("self_consistency", "1+1?", "3", answer=lambda _: "Answer: 2<|end|>")
    assert (result["answer"], result["answers"]) == ("2", ["2", "2", "2"])


# -- recursion of thought --------------------------------------------------------------------------

expressions = st.recursive(
    st.integers(0, 999).map(str),
    lambda part: st.builds(
        lambda left, op, right: f"({left}){op}({right})", part, st.sampled_from("+-*"), part
    ),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(expressions)
def test_recursion_finds_what_python_finds(problem: str) -> None:
    """With a model that can add and subtract two numbers and nothing else."""

    async def main() -> int:
        node, _ = node_saying(calculator, page_size=16)
        async with node:
            return int(await node.run(lambda_program(problem)))

    value = eval(problem)
    factors_fit = "*" not in problem or abs(value) < 10**6
    if factors_fit:
        assert asyncio.run(main()) == value


def lambda_program(problem: str) -> Any:
    async def solve(api: Any) -> str:
        return str(await Recursion(api).solve(problem))

    return solve


@pytest.mark.parametrize("problem", ["1/2", "2**9", "x", "1.5", "True", "f(1)", "1 +", "(" * 300])
async def test_recursion_refuses_what_it_cannot_divide(problem: str) -> None:
    node, _ = node_saying(calculator)
    async with node:
        with pytest.raises(ProgramFailed, match="InvalidArgument"):
            await node.run(lambda_program(problem))


async def test_equal_parts_are_asked_once_and_in_contexts_of_their_own() -> None:
    node, script = node_saying(calculator)
    async with node:
        assert await node.run(lambda_program("(12*4)+(12*4)")) == "96"
    questions = [re.findall(r"\d+ [+-] \d+", prompt) for prompt in script.prompts]
    assert questions == [["12 + 12"], ["24 + 24"], ["48 + 48"]]


async def test_the_model_divides_the_question() -> None:
    def answer(prompt: str) -> str:
        if "Tools:" not in prompt:
            return calculator(prompt)
        if prompt.endswith("<|assistant|>"):
            return "Thought: First.\nAction: calc(34*7)\nObservation:"
        if prompt.endswith("Observation: 238\n"):
            return "Thought: Then.\nAction: calc(238-19)\nObservation:"
        assert prompt.endswith("Observation: 219\n"), prompt
        return "Answer: 219<|end|>"

    result, messages, _ = await run("recursion_of_thought", "How many?", answer=answer)
    assert result["answer"] == "219"
    assert result["problems"] == ["calc(34*7)", "calc(238-19)"] == messages
    assert result["num_asked"] == 5  # 34+34, 68+34, 102+102, 204+34, 238-19


async def test_a_part_that_cannot_be_divided_is_told_to_the_model() -> None:
    def answer(prompt: str) -> str:
        if prompt.endswith("<|assistant|>"):
            return "Action: calc(7/2)\nObservation:"
        assert "Observation: error: neither a number" in prompt
        return "Answer: none<|end|>"

    result, _, _ = await run("recursion_of_thought", "How many?", answer=answer)
    assert result["answer"] == "none"


# -- graph of thoughts -----------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-9999, 9999), min_size=1, max_size=9))
def test_the_balance_is_the_sum(amounts: list[int]) -> None:
    async def main() -> dict[str, Any]:
        result, _, _ = await run(
            "graph_of_thought", " ".join(map(str, amounts)), answer=calculator, page_size=16
        )
        return dict(result)

    result = asyncio.run(main())
    assert int(result["answer"]) == sum(amounts)
    assert result["num_unsure"] == 0
    num_in = sum(amount >= 0 for amount in amounts)
    num_out = len(amounts) - num_in
    merges = max(num_in - 1, 0) + max(num_out - 1, 0) + (num_out > 0)
    assert len(result["vertices"]) == merges


class Wavering(ThoughtGraph):
    """Its first candidate is always wrong by one."""

    async def _generate(self, problem: str, seed: int) -> int | None:
        right = int(eval(problem))
        return right + 1 if seed == 0 else right


async def _wavering(num_candidates: int) -> tuple[int, list[float]]:
    node, _ = node_saying(calculator)

    async def main(api: Any) -> list[Any]:
        graph = Wavering(api, num_candidates)
        vertex = await graph.best("20 + 22")
        return [vertex.value, [vertex.score]]

    async with node:
        value, scores = await node.run(main)
    return value, scores


async def test_the_candidate_that_the_model_can_undo_is_kept() -> None:
    assert await _wavering(1) == (43, [0.0])
    assert await _wavering(2) == (42, [1.0])


async def test_a_graph_needs_numbers_and_a_candidate() -> None:
    with pytest.raises(InvalidArgument, match="from 1 to"):
        await run("graph_of_thought", "1 2", "0", answer=calculator)
    with pytest.raises(ProgramFailed, match="invalid literal"):
        await run("graph_of_thought", "1 two", answer=calculator)
    with pytest.raises(ProgramFailed, match="gave no number"):
        await run("graph_of_thought", "1 2", answer=lambda _: "Well.<|end|>")


# -- skeleton of thought ---------------------------------------------------------------------------


def test_points_are_the_numbered_lines() -> None:
    assert points_of("Here:\n1. Boil.\n 2) Pour it. \n3.x\nDone 4. no") == ["Boil.", "Pour it."]


async def test_points_are_written_side_by_side_and_joined_in_order() -> None:
    def answer(prompt: str) -> str:
        if "List" in prompt.rpartition("<|user|>")[2]:
            assert "Be short." not in prompt
            return "1. Boil\n2. Pour<|end|>"
        assert prompt.startswith(chat("", "Be short.")[: len("<|system|>Be short.")])
        return "It steams.<|end|>" if "2: Pour" not in prompt else "It flows.<|end|>"

    result, messages, num_prompts = await run(
        "skeleton_of_thought", "List.", "{number}: {point}", "Be short.", answer=answer
    )
    assert result["points"] == ["Boil", "Pour"]
    assert result["answer"] == "It steams.\nIt flows."
    assert messages == ["1. Boil\n2. Pour"]
    assert num_prompts == 3


async def test_what_each_point_is_asked_with_is_bounded() -> None:
    with pytest.raises(ProgramFailed, match="at most 4096"):
        await run(
            "skeleton_of_thought", "List.", "{question}" * 410, answer=lambda _: "1. A<|end|>"
        )


async def test_an_outline_without_points_is_an_error() -> None:
    with pytest.raises(ProgramFailed, match="no numbered points"):
        await run("skeleton_of_thought", "List.", answer=lambda _: "No.<|end|>")


@PAGE_SIZES
@pytest.mark.parametrize(
    "questions",
    [["One?"], ["One?", "One?"], ["One?", "Only this?", "On"], ["a", "b" * 30]],
    ids=["one", "equal", "three", "apart"],
)
async def test_points_see_their_own_prompt_alone(page_size: int, questions: list[str]) -> None:
    """Forks of the common beginning say what plain decoding of each prompt says."""

    async def main(api: Any) -> list[str]:
        system = {"role": "system", "content": "Some documents."}
        talks = [[system, {"role": "user", "content": question}] for question in questions]
        replies, _ = await side_by_side(api, talks, 20)
        return [reply.text for reply in replies]

    async with node_of(page_size) as node:
        texts = await node.run(main)
    assert texts == [oracle(chat(question, "Some documents."), 20) for question in questions]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgument, match="not an expression"):
        asyncio.run(Recursion(None).solve("1 +"))  # type: ignore[arg-type]
