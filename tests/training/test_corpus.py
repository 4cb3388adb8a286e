"""Generators: determinism, the held-out split, and answers checked by other means."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from training.corpus import arithmetic, codeact, facts, functions, lists, react
from training.corpus.calculator import CalculationError, calculate, run_program
from training.corpus.document import Document, Split
from training.corpus.mixture import SAMPLERS, Sampler, draw
from training.corpus.words import made_up

BALANCED = dict.fromkeys(SAMPLERS, 1.0)


@cache
def documents(sample: Sampler, split: Split, count: int = 60) -> tuple[Document, ...]:
    rng = Random(7)
    return tuple(sample(rng, split) for _ in range(count))


def learned(document: Document) -> str:
    return "".join(segment.text for segment in document.segments if segment.learned)


def test_a_step_is_a_function_of_seed_and_number() -> None:
    first = [d.text for d in islice(draw(3, 11, BALANCED), 50)]
    assert first == [d.text for d in islice(draw(3, 11, BALANCED), 50)]
    assert first != [d.text for d in islice(draw(3, 12, BALANCED), 50)]
    assert first != [d.text for d in islice(draw(4, 11, BALANCED), 50)]


@pytest.mark.parametrize("name", ["arithmetic", "react", "functions", "invented", "facts"])
def test_held_out_prompts_are_never_drawn_for_training(name: str) -> None:
    held_out = {d.prompt for d in documents(SAMPLERS[name], Split.HELD_OUT)}
    trained = {d.prompt for d in documents(SAMPLERS[name], Split.TRAIN, 600)}
    assert len(held_out) > 50
    assert not held_out & trained


def test_made_up_words_of_the_splits_are_disjoint() -> None:
    rng = Random(1)
    trained = {made_up(rng, Split.TRAIN) for _ in range(2000)}
    held_out = {made_up(rng, Split.HELD_OUT) for _ in range(100)}
    assert not trained & held_out


def test_invented_functions_of_the_splits_have_different_names() -> None:
    pattern = re.compile(r'"name": "([^"]+)"')
    names = {
        split: {pattern.findall(d.answer)[0] for d in documents(functions.sample_unseen, split)}
        for split in Split
    }
    assert not names[Split.TRAIN] & names[Split.HELD_OUT]


def column_value(line: str) -> int:
    """The digit that a written column yields, recomputed from its left side."""
    left, _, right = line.partition("=")
    first, second, carry = map(int, re.split(r"[+-]", left))
    if "+" in left:
        assert first + second + carry == int(right)
        return int(right) % 10
    digit, _, borrow = right.partition("b")
    assert first - second - carry == int(digit) - 10 * int(borrow)
    return int(digit)


def test_written_steps_and_answers_are_right() -> None:
    for a, operator, b in [(48213, "+", 977), (5, "-", 83), (10003, "-", 9998), (0, "+", 0)]:
        *steps, answer = arithmetic.worked_answer(a, operator, b).split("\n")
        columns = [line for line in steps if re.match(r"\d[+-]\d[+-]\d=", line)]
        digits = [column_value(line) for line in columns]
        carry = columns[-1].partition("=")[2]
        top = int(carry) // 10 if "+" in columns[-1] else 0
        value = int(f"{top}{''.join(map(str, reversed(digits)))}")
        expected = a + b if operator == "+" else a - b
        assert value == abs(expected)
        assert answer == f"Answer: {expected}"


def test_worked_sum_reads_as_documented() -> None:
    assert arithmetic.worked_answer(48213, "+", 977) == (
        "48213+00977\n3+7+0=10\n1+7+1=09\n2+9+0=11\n8+0+1=09\n4+0+0=04\nAnswer: 49190"
    )
    assert arithmetic.worked_answer(5, "-", 83) == (
        "05-83\n0<8\n83-05\n3-5-0=8b1\n8-0-1=7b0\nAnswer: -78"
    )


def test_arithmetic_answers_match_their_questions() -> None:
    for document in documents(arithmetic.sample, Split.HELD_OUT):
        first = document.answer.split("\n")[0]
        a, operator, b = re.findall(r"\d+|[+-]", first)[:3]
        expected = int(a) + int(b) if operator == "+" else int(a) - int(b)
        assert document.answer.endswith(f"Answer: {expected}")
        numbers = {int(n) for n in re.findall(r"\d+", document.prompt)}
        assert {int(a), int(b)} == numbers


def test_react_observations_are_what_the_tools_return() -> None:
    for document in documents(react.sample, Split.TRAIN):
        actions = re.findall(r"Action: (\w+)\((.*)\)\nObservation: (.*)\n", document.text)
        assert actions
        for tool, arguments, observation in actions:
            if tool == "calc":
                assert calculate(arguments) == observation
            else:
                name, _, key = arguments.partition(", ")
                assert document.records[name, key] == observation
        assert document.answer == actions[-1][2]


def test_programs_print_what_stands_after_result() -> None:
    for document in documents(codeact.sample, Split.TRAIN):
        program = document.text.partition("```python\n")[2].partition("\n```")[0]
        printed = str(eval(program, {"print": lambda value: value}))
        expected = run_program(program)
        assert printed == expected or float(printed) == pytest.approx(float(expected), abs=0.01)
        assert f"Result: {expected}\nAnswer: {expected}" in document.text


@pytest.mark.parametrize("text", ["2**9", "__import__('os')", "1+", "calc(1)", "1/0", "'a'*9"])
def test_the_calculator_refuses_everything_else(text: str) -> None:
    with pytest.raises(CalculationError):
        calculate(text)


def test_answers_about_facts_stand_beside_their_name() -> None:
    for document in documents(facts.sample, Split.HELD_OUT):
        value = document.answer.removeprefix("Answer: ")
        context, _, question = document.prompt.partition("\nQuestion: ")
        found = re.match(r"What is (?:the \w+ of )?(\w+)", question)
        assert found is not None
        name = found.group(1)
        sentences = [s for s in re.split(r"\.\s|\n", context) if name in s and value in s]
        assert sentences


def test_calls_are_json_that_fits_a_listed_signature() -> None:
    for document in documents(functions.sample_unseen, Split.HELD_OUT):
        body = document.answer.removeprefix("<tool_call>").removesuffix("</tool_call>")
        call = json.loads(body)
        signature = re.search(rf"^{re.escape(call['name'])}\((.*)\)", document.prompt, re.M)
        assert signature is not None
        assert json.dumps(call) == body
        for name in call["arguments"]:
            assert re.search(rf"\b{re.escape(name)}\??: ", signature.group(1))


def test_lists_have_as_many_lines_as_asked_for() -> None:
    for document in documents(lists.sample, Split.TRAIN):
        count = re.search(rf"\b(\d+) (?:{'|'.join(lists.CATEGORIES)})", document.prompt)
        if document.kind == "list" and count:
            lines = document.answer.split("\n")
            assert [line.partition(". ")[0] for line in lines] == [
                str(i) for i in range(1, int(count.group(1)) + 1)
            ]


def test_every_family_teaches_something() -> None:
    for name, sample in SAMPLERS.items():
        assert all(learned(d) for d in documents(sample, Split.TRAIN, 20)), name


_DRAW = """
import hashlib
from random import Random
from training.corpus.document import Split
from training.corpus.mixture import SAMPLERS
digest = hashlib.sha256()
for family, sample in SAMPLERS.items():
    for split in Split:
        rng = Random(family)
        for _ in range(3):
            digest.update(repr(sample(rng, split)).encode())
print(digest.hexdigest())
"""


def test_every_process_draws_the_same_documents() -> None:
    drawn = [
        subprocess.run(
            [sys.executable, "-c", _DRAW],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert drawn[0]
    assert drawn[0] == drawn[1]
