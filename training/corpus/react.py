"""Draws ReAct traces over two tools: ``calc(expression)`` and ``lookup(name, key)``.

The program stops the model at ``Observation:`` and writes the tool's real result after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from training.corpus.calculator import calculate
from training.corpus.document import (
    USER,
    Document,
    Segment,
    Split,
    asked,
    in_split,
    said,
    system_turn,
    turn,
)
from training.corpus.words import ITEMS, people

SYSTEM_TEXTS = (
    "Tools: calc(expression), lookup(name, key). Use Thought, Action, Observation, Answer.",
    "You can use tools: calc(expression), lookup(name, key). "
    "Reply with Thought and Action, read the Observation, and finish with Answer.",
    "Answer the question step by step with Thought, Action, Observation and Answer. "
    "Tools: calc(expression) and lookup(name, key).",
)
KEYS = "age phone room code desk score height salary weight floor".split()
LEADS = ("", "", "", "Question: ")
OBSERVATION = "Observation:"


@dataclass(slots=True)
class Trace:
    """A question and the steps that answer it; tools are really called while it is written."""

    question: str
    kind: str
    records: dict[tuple[str, str], str] = field(default_factory=dict)
    steps: list[tuple[str, str, str]] = field(default_factory=list)
    answer: str = ""

    def calc(self, thought: str, expression: str) -> str:
        result = calculate(expression)
        self.steps.append((thought, f"calc({expression})", result))
        return result

    def lookup(self, thought: str, name: str, key: str, value: str) -> str:
        self.records[name, key] = value
        self.steps.append((thought, f"lookup({name}, {key})", value))
        return value


Builder = Callable[[Random, Split], Trace]


def _amounts(rng: Random, split: Split) -> tuple[int, int, int]:
    while True:
        most = rng.choice([99, 999, 9999])
        numbers = rng.randint(2, most), rng.randint(2, most), rng.randint(2, 40)
        if in_split(numbers, split):
            return numbers


def _sum(rng: Random, split: Split) -> Trace:
    (a, b, _), (n, m), item = _amounts(rng, split), people(rng, split, 2), rng.choice(ITEMS)
    question = rng.choice(
        [
            f"{n} has {a} {item} and buys {b} more. How many {item} does {n} have?",
            f"{n} had {a} {item}. {m} gave {n} {b} {item}. How many {item} does {n} have now?",
            f"{n} has {a} {item} and {m} has {b} {item}. How many {item} do they have together?",
            f"{n} found {a} {item} and later {b} more. How many is that?",
        ]
    )
    trace = Trace(question, "one step")
    trace.answer = trace.calc(f"I need to add {a} and {b}.", f"{a}+{b}")
    return trace


def _difference(rng: Random, split: Split) -> Trace:
    (a, b, _), (n, m), item = _amounts(rng, split), people(rng, split, 2), rng.choice(ITEMS)
    a, b = max(a, b), min(a, b)
    question = rng.choice(
        [
            f"{n} has {a} {item} and gives {b} to {m}. How many are left?",
            f"{n} had {a} {item} and lost {b}. How many {item} remain?",
            f"{n} has {a} {item} and {m} has {b}. How many more {item} does {n} have?",
            f"{n} had {a} {item} and sold {b} of them. How many are left?",
        ]
    )
    trace = Trace(question, "one step")
    trace.answer = trace.calc(f"I need to subtract {b} from {a}.", f"{a}-{b}")
    return trace


def _product(rng: Random, split: Split) -> Trace:
    (_, b, c), (n, _), item = _amounts(rng, split), people(rng, split, 2), rng.choice(ITEMS)
    question = rng.choice(
        [
            f"A box holds {c} {item}. {n} buys {b} boxes. How many {item} is that?",
            f"{n} buys {b} bags with {c} {item} each. How many {item} does {n} have?",
            f"There are {b} rows of {c} {item}. How many {item} are there?",
        ]
    )
    trace = Trace(question, "one step")
    trace.answer = trace.calc(f"I need to multiply {b} by {c}.", f"{b}*{c}")
    return trace


def _expression(rng: Random, split: Split) -> Trace:
    a, b, c = _amounts(rng, split)
    op, other = rng.choice("+-*/"), rng.choice("+-*")
    text = rng.choice([f"{a}{op}{b}", f"({a}{other}{b}){op}{c}", f"{c}*({a}{other}{b})"])
    form = rng.choice(["What is {e}?", "Compute {e}.", "Calculate {e}", "How much is {e}?"])
    trace = Trace(form.format(e=text), "one step")
    trace.answer = trace.calc("I need to calculate it.", text)
    return trace


def _shared(rng: Random, split: Split) -> Trace:
    (a, b, c), (n, m), item = _amounts(rng, split), people(rng, split, 2), rng.choice(ITEMS)
    question = rng.choice(
        [
            f"{n} has {a} {item} and {m} has {b}. They share them in {c} equal groups. "
            "How many per group?",
            f"{n} has {a} {item} and {m} has {b} {item}. They divide all of them among {c} friends."
            " How many does each friend get?",
        ]
    )
    trace = Trace(question, "two steps")
    total = trace.calc(f"First I add {a} and {b}.", f"{a}+{b}")
    trace.answer = trace.calc(f"Now I divide {total} by {c}.", f"{total}/{c}")
    return trace


def _spent(rng: Random, split: Split) -> Trace:
    (a, b, c), (n, _), item = _amounts(rng, split), people(rng, split, 2), rng.choice(ITEMS)
    question = (
        f"{n} buys {b} boxes of {c} {item} and gives {a} {item} away. How many {item} are left?"
    )
    trace = Trace(question, "two steps")
    total = trace.calc(f"First I multiply {b} by {c}.", f"{b}*{c}")
    trace.answer = trace.calc(f"Now I subtract {a} from {total}.", f"{total}-{a}")
    return trace


def _record(rng: Random, split: Split) -> Trace:
    (a, *_), (n, _), key = _amounts(rng, split), people(rng, split, 2), rng.choice(KEYS)
    question = rng.choice(
        [f"What is the {key} of {n}?", f"What is {n}'s {key}?", f"Tell me the {key} of {n}."]
    )
    trace = Trace(question, "one step")
    trace.answer = trace.lookup(f"I need to look up the {key} of {n}.", n, key, str(a))
    return trace


def _record_plus(rng: Random, split: Split) -> Trace:
    (a, b, _), (n, _), key = _amounts(rng, split), people(rng, split, 2), rng.choice(KEYS)
    sign, verb = rng.choice([("+", "plus"), ("-", "minus"), ("*", "times")])
    trace = Trace(f"What is the {key} of {n} {verb} {b}?", "two steps")
    value = trace.lookup(f"First I look up the {key} of {n}.", n, key, str(a))
    trace.answer = trace.calc(f"Now I compute {value} {verb} {b}.", f"{value}{sign}{b}")
    return trace


def _two_records(rng: Random, split: Split) -> Trace:
    (a, b, _), (n, m), key = _amounts(rng, split), people(rng, split, 2), rng.choice(KEYS)
    question = rng.choice(
        [
            f"What is the {key} of {n} plus the {key} of {m}?",
            f"What is the sum of the {key} of {n} and the {key} of {m}?",
        ]
    )
    trace = Trace(question, "three steps")
    x = trace.lookup(f"First I look up the {key} of {n}.", n, key, str(a))
    y = trace.lookup(f"Next I look up the {key} of {m}.", m, key, str(b))
    trace.answer = trace.calc(f"Now I compute {x} plus {y}.", f"{x}+{y}")
    return trace


_BUILDERS: dict[Builder, int] = {
    _sum: 3,
    _difference: 3,
    _product: 3,
    _expression: 3,
    _shared: 3,
    _spent: 2,
    _record: 3,
    _record_plus: 3,
    _two_records: 2,
}


def sample(rng: Random, split: Split) -> Document:
    """Draw one trace, the tools' results being read and everything else learned."""
    trace = rng.choices(list(_BUILDERS), list(_BUILDERS.values()))[0](rng, split)
    system = system_turn(rng.choice(SYSTEM_TEXTS))
    lead = rng.choice(LEADS)
    segments = [asked(*system, turn(USER, lead + trace.question))]
    for thought, action, result in trace.steps:
        learned = f"Thought: {thought}\nAction: {action}\n{OBSERVATION}"
        segments += [Segment(learned, learned=True), Segment(f" {result}\n", learned=False)]
    segments.append(said(f"Thought: I know the answer.\nAnswer: {trace.answer}"))
    return Document("react", trace.kind, tuple(segments), trace.answer, trace.records)
