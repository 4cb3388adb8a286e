"""Draws seeded instances within the shipped model's range, for each reasoning and agent program.

Where there is one, instances come from the held-out split of the model's own training generators,
so that it was trained on none of them. Plain decoding answers the same question in a chat,
greedily.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from string import ascii_uppercase
from typing import Any

from quire.programs.chat import parse_answer
from training.corpus import codeact, react
from training.corpus.calculator import format_number
from training.corpus.document import Split
from training.corpus.words import CITIES

DIFFERENCE_DIGITS = 5
LARGEST = 99_999


@dataclass(frozen=True, slots=True)
class Case:
    """One instance. ``args`` are the program's arguments; plain decoding gets ``question`` after
    the text ``system``, which lists the functions where the program has such tools."""

    question: str
    args: tuple[str, ...]
    expected: str
    system: str = ""


@dataclass(frozen=True, slots=True)
class LibraryTask:
    """The task of one program. ``read``: extracts the answer from its result; ``plain``: from a
    reply."""

    program: str
    about: str
    draw: Callable[[Random], Case]
    read: Callable[[Any], str]
    plain: Callable[[str], str]
    settings: str = ""

    def cases(self, num_cases: int, seed: int) -> list[Case]:
        """Return distinct instances, the same for the same seed; fewer if there are no more."""
        random, drawn = Random(f"{self.about}/{seed}"), dict[str, Case]()
        for _ in range(50 * num_cases):
            case = self.draw(random)
            drawn.setdefault(case.question, case)
            if len(drawn) == num_cases:
                break
        return list(drawn.values())


def answer_of(result: Any) -> str:
    return str(result["answer"]).strip()


def behind_answer(reply: str) -> str:
    """Return the text after ``Answer:``, or the whole reply without one."""
    return reply.rpartition("Answer:")[2].strip()


def difference(*settings: str) -> Callable[[Random], Case]:
    """Draw a subtraction of numbers of five digits, the longest that the model was trained on,
    where it errs most."""

    def draw(random: Random) -> Case:
        low = 10 ** (DIFFERENCE_DIGITS - 1)
        first, second = random.randint(low, LARGEST), random.randint(low, LARGEST)
        question = f"What is {first} - {second}?"
        return Case(question, (question, *settings), str(first - second))

    return draw


def word_problem(random: Random) -> Case:
    """Draw one or two operations in words, without division and within five digits."""
    while True:
        document = react.sample(random, Split.HELD_OUT)
        actions = [text for segment in document.segments for text in segment.text.split("\n")]
        problems = [line for line in actions if line.startswith("Action: ")]
        if document.records or any("/" in problem for problem in problems):
            continue
        if document.answer.lstrip("-").isdigit() and abs(int(document.answer)) <= LARGEST:
            question = _question(document.prompt)
            return Case(question, (question,), document.answer)


def balance(random: Random) -> Case:
    """Draw six amounts of up to four digits, of which more come in than go out."""
    while True:
        amounts = [random.choice([1, 1, -1]) * random.randint(1, 9999) for _ in range(6)]
        if sum(amounts) >= 0 and min(amounts) < 0:
            break
    text = " ".join(map(str, amounts))
    spoken = str(amounts[0]) + "".join(f" {'-' if n < 0 else '+'} {abs(n)}" for n in amounts[1:])
    return Case(f"What is {spoken}?", (text,), str(sum(amounts)))


def fan_out(random: Random) -> Case:
    """Draw a list of cities and a function to call for each: two skills that the model was trained
    on separately."""
    count, question = random.randint(2, 6), random.choice(_LIST_FORMS)
    outline = question.format(n=count)
    args = (outline, "What is the weather in {point}?", "Functions:\nget_weather(city: string)")
    return Case(f"{outline} What is the weather in each?", args, "right")


_LIST_FORMS = ("List {n} cities.", "Name {n} cities.", "Give me {n} cities.")


def _all_called(result: Any) -> str:
    """Whether there are several points and each became the one right call."""
    calls = [parse_answer(text).calls for text in result["texts"]]
    cities = [json.loads(call[0].arguments).get("city") for call in calls if len(call) == 1]
    return "right" if len(cities) > 1 and cities == result["points"] else "wrong"


def _called_in_one(reply: str) -> str:
    """Whether one reply has several calls with different cities."""
    calls = parse_answer(reply).calls
    cities = {call.arguments for call in calls if call.name == "get_weather"}
    return "right" if len(cities) > 1 else "wrong"


def with_tools(random: Random) -> Case:
    """Draw a question over a calculator and a table of records."""
    document = react.sample(random, Split.HELD_OUT)
    records: dict[str, dict[str, str]] = {}
    for (name, key), value in document.records.items():
        records.setdefault(name, {})[key] = value
    question = _question(document.prompt)
    return Case(question, (question, json.dumps(records)), document.answer)


def among_agents(random: Random) -> Case:
    """Draw a question over facts in sentences, without division and within five digits."""
    while True:
        document = react.sample(random, Split.HELD_OUT)
        actions = "".join(segment.text for segment in document.segments)
        whole = document.answer.lstrip("-").isdigit() and abs(int(document.answer)) <= LARGEST
        if document.records and whole and "/" not in actions:
            break
    facts = " ".join(f"The {key} of {name} is {v}." for (name, key), v in document.records.items())
    question = _question(document.prompt)
    asked_plainly = f"Context: {facts}\nQuestion: {question}"
    return Case(asked_plainly, (question, facts), document.answer)


def with_code(random: Random) -> Case:
    """Draw a question over lists, words, expressions or stories that one line of Python solves."""
    document = codeact.sample(random, Split.HELD_OUT)
    question = _question(document.prompt)
    return Case(question, (question,), document.answer)


def _two_places(text: str) -> str:
    """A number rounded as the generator prints it; any other text unchanged."""
    try:
        return format_number(float(text))
    except ValueError:
        return text


def two_calls(random: Random) -> Case:
    """Draw a question with two parts, each for a different function."""
    city, symbol = random.choice(CITIES), "".join(random.sample(ascii_uppercase, 3))
    parts = [("get_time", f"What time is it in {city}?", city)]
    parts.append(("get_price", f"What is the price of {symbol}?", symbol))
    random.shuffle(parts)
    question = " ".join(text for _, text, _ in parts)
    expected = " ".join(f"{name}({argument})" for name, _, argument in parts)
    functions = "Functions:\nget_time(city: string)\nget_price(symbol: string)"
    return Case(question, (question, "0"), expected, functions)


def _calls_made(result: Any) -> str:
    made = result["calls"][:2]
    return " ".join(f"{call['name']}({_argument(call['arguments'])})" for call in made)


def _calls_written(reply: str) -> str:
    calls = parse_answer(reply).calls
    return " ".join(f"{call.name}({_argument(call.arguments)})" for call in calls)


def _argument(arguments: str) -> str:
    """The values of a call's arguments; a single value without its list."""
    try:
        return " ".join(map(str, json.loads(arguments).values()))
    except (ValueError, AttributeError):
        return "unreadable"


def _question(prompt: str) -> str:
    return prompt.partition("<|user|>")[2].partition("<|end|>")[0]


FIVE_DIGITS = "differences of five digits"
TASKS: Sequence[LibraryTask] = (
    LibraryTask(
        "self_consistency", FIVE_DIGITS, difference("8"), answer_of, behind_answer, "8 voices"
    ),
    LibraryTask(
        "tree_of_thought", FIVE_DIGITS, difference(), answer_of, behind_answer, "breadth 3 of 3"
    ),
    LibraryTask("mcts", FIVE_DIGITS, difference(), answer_of, behind_answer, "up to 32 turns of 4"),
    LibraryTask("recursion_of_thought", "word problems", word_problem, answer_of, behind_answer),
    LibraryTask("graph_of_thought", "balance of six amounts", balance, answer_of, behind_answer),
    LibraryTask(
        "skeleton_of_thought", "cities, a call for each", fan_out, _all_called, _called_in_one
    ),
    LibraryTask("react", "calculator and records", with_tools, answer_of, behind_answer),
    LibraryTask(
        "codeact",
        "one line of Python",
        with_code,
        lambda result: _two_places(answer_of(result)),
        lambda reply: _two_places(behind_answer(reply)),
    ),
    LibraryTask("swarm", "facts and sums", among_agents, answer_of, behind_answer, "5 agents"),
    LibraryTask("async_tools", "two calls", two_calls, _calls_made, _calls_written),
)
"""Every reasoning and agent program, in the order of the table."""
