"""Draws tasks for CodeAct: one line of Python, the result that the program writes, then the answer.

The program stops the model at ``Result:``, runs the line and writes what it printed.
"""

from random import Random

from training.corpus.calculator import run_program
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
from training.corpus.words import ANIMALS, COLORS, FRUITS, ITEMS, made_up, person

SYSTEM_TEXTS = (
    "Write one line of Python to solve the task, read the Result, then give the Answer.",
    "Solve the task with Python code. After the Result, write Answer.",
    "You are a coding agent. Answer with one line of Python, then use the Result in your Answer.",
)
LEADS = ("", "", "", "Task: ")
RESULT = "Result:"

Task = tuple[str, str]


def _numbers(rng: Random, split: Split) -> list[int]:
    while True:
        most = rng.choice([9, 99, 999])
        numbers = [rng.randint(0, most) for _ in range(rng.randint(3, 7))]
        if in_split(numbers, split):
            return numbers


def _word(rng: Random, split: Split) -> str:
    if split is Split.HELD_OUT or rng.random() < 0.7:
        return made_up(rng, split)
    return rng.choice((*ANIMALS, *COLORS, *FRUITS))


def _list_task(rng: Random, split: Split) -> Task:
    numbers = _numbers(rng, split)
    shown = rng.choice([", ".join(map(str, numbers)), " ".join(map(str, numbers)), str(numbers)])
    phrases, code = rng.choice(
        [
            (("What is the largest of {x}?", "Find the maximum of {x}.", "Biggest of {x}?"), "max"),
            (("What is the smallest of {x}?", "Find the minimum of {x}."), "min"),
            (("What is the sum of {x}?", "Add up {x}.", "What is the total of {x}?"), "sum"),
            (("Sort {x}.", "Put {x} in order.", "Sort the numbers {x}."), "sorted"),
            (("How many numbers are in {x}?", "Count the numbers {x}."), "len"),
            (("What is the average of {x}?", "Find the mean of {x}."), "mean"),
        ]
    )
    text = str(numbers)
    line = f"sum({text})/len({text})" if code == "mean" else f"{code}({text})"
    return rng.choice(phrases).format(x=shown), line


def _word_task(rng: Random, split: Split) -> Task:
    word = _word(rng, split)
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    phrases, line = rng.choice(
        [
            (
                (
                    "How many times does the letter {c} occur in {w}?",
                    "Count the letter {c} in {w}.",
                    "How many {c} are in {w}?",
                    "How many letters {c} are in the word {w}?",
                ),
                '"{w}".count("{c}")',
            ),
            (("How many letters does {w} have?", "How long is the word {w}?"), 'len("{w}")'),
            (("Reverse {w}.", "Spell {w} backwards.", "Reverse the word {w}."), '"{w}"[::-1]'),
            (("Write {w} in capitals.", "Make {w} upper case."), '"{w}".upper()'),
        ]
    )
    return rng.choice(phrases).format(w=word, c=letter), line.format(w=word, c=letter)


def _expression_task(rng: Random, split: Split) -> Task:
    while True:
        a, b, c = rng.randint(2, 999), rng.randint(2, 999), rng.randint(2, 99)
        if in_split((a, b, c), split):
            break
    p, q = rng.choice("+-*"), rng.choice("+-*")
    line = rng.choice([f"{a}{p}{b}", f"{c}*({a}{p}{b})", f"{a}{p}{b}{q}{c}", f"({a}{p}{b}){q}{c}"])
    form = rng.choice(["What is {e}?", "Compute {e}.", "Calculate {e}.", "Evaluate {e}"])
    return form.format(e=line), line


def _story_task(rng: Random, split: Split) -> Task:
    n, item = person(rng, split), rng.choice(ITEMS)
    while True:
        a, b, c = rng.randint(2, 999), rng.randint(2, 99), rng.randint(2, 99)
        if in_split((a, b, c), split):
            break
    return rng.choice(
        [
            (f"{n} has {a} {item} and buys {b} more. How many {item} does {n} have?", f"{a}+{b}"),
            (f"{n} had {a} {item} and lost {b}. How many {item} remain?", f"{a}-{b}"),
            (f"{n} buys {b} bags with {c} {item} each. How many {item} is that?", f"{b}*{c}"),
            (
                f"{n} has {a} {item} and buys {b} bags with {c} {item} each. How many in all?",
                f"{a}+{b}*{c}",
            ),
            (f"{n} shares {a} {item} among {b} friends. How many does each get?", f"{a}/{b}"),
            (
                f"{n} has {a} {item} and finds {b} more, then doubles them. How many {item} now?",
                f"2*({a}+{b})",
            ),
            (f"What is {c} percent of {a}?", f"{a}*{c}/100"),
        ]
    )


def sample(rng: Random, split: Split) -> Document:
    """Draw one task with its line of code, its printed result and the answer."""
    builders = {
        "list": _list_task,
        "word": _word_task,
        "sum": _expression_task,
        "story": _story_task,
    }
    kind = rng.choices(list(builders), [4, 4, 2, 3])[0]
    question, line = builders[kind](rng, split)
    program, lead = f"print({line})", rng.choice(LEADS)
    result = run_program(program)
    segments = (
        asked(*system_turn(rng.choice(SYSTEM_TEXTS)), turn(USER, lead + question)),
        Segment(f"```python\n{program}\n```\n{RESULT}", learned=True),
        Segment(f" {result}\n", learned=False),
        said(f"Answer: {result}"),
    )
    return Document("codeact", kind, segments, result)
