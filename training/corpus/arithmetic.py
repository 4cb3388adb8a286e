"""Draws additions and subtractions with written-out steps, and the small multiplication table.

``48213 + 977`` is first copied with both numbers padded to one width, then worked out from the
units: ``3+7+0=10`` (digit, digit, carry in; carry out and digit), or ``3-7-0=6b1`` (digit, borrow
out).  A difference first compares the numbers from the top (``4=4``, ``8>0``), then repeats the
problem, swapped if its answer is below zero.
"""

from random import Random

from training.corpus.document import Document, Split, conversation, in_split
from training.corpus.words import ITEMS, number_of_digits, person

_SYMBOL_FORMS = (
    "What is {e}?",
    "what is {e}",
    "{e} = ?",
    "{e}",
    "{e} =",
    "Compute {e}.",
    "Calculate {e}",
    "How much is {e}?",
    "What's {e}?",
    "Work out {e}.",
    "Please compute {e}.",
    "Can you calculate {e}?",
    "Solve {e}",
    "Hi, what is {e}?",
    "Find {e}.",
    "Question: What is {e}?",
)
_SUM_FORMS = (
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "{a} plus {b}",
    "How much is {a} plus {b}?",
)
_DIFFERENCE_FORMS = (
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "{a} minus {b}",
    "How much is {a} minus {b}?",
    "Take {b} away from {a}.",
)
_SUM_STORIES = (
    "{n} has {a} {i} and buys {b} more. How many {i} does {n} have?",
    "{n} had {a} {i} and found {b} more. How many {i} is that?",
    "There are {a} {i} here and {b} {i} there. How many {i} are there?",
)
_DIFFERENCE_STORIES = (
    "{n} has {a} {i} and gives {b} away. How many are left?",
    "{n} had {a} {i} and lost {b}. How many {i} remain?",
    "There were {a} {i}. {n} took {b}. How many are left?",
)
SYSTEM_TEXTS = ("", "", "", "You are a helpful assistant.", "Be short.", "Work step by step.")
_PRODUCT_FORMS = (
    "What is {a} times {b}?",
    "What is {a} * {b}?",
    "{a} * {b}",
    "Multiply {a} by {b}.",
)


def addition_steps(a: int, b: int) -> str:
    """Return the worked sum, one column a line, without the answer line."""
    width = max(len(str(a)), len(str(b)))
    x, y = str(a).zfill(width), str(b).zfill(width)
    lines, carry = [f"{x}+{y}"], 0
    for p, q in zip(reversed(x), reversed(y), strict=True):
        total = int(p) + int(q) + carry
        lines.append(f"{p}+{q}+{carry}={total:02d}")
        carry = total // 10
    return "\n".join(lines)


def _comparison(x: str, y: str) -> list[str]:
    """Digits from the top until they differ; numbers of one width."""
    lines = []
    for p, q in zip(x, y, strict=True):
        lines.append(f"{p}{'<' if p < q else '>' if p > q else '='}{q}")
        if p != q:
            break
    return lines


def subtraction_steps(a: int, b: int) -> str:
    """Return the worked difference: compare, swap if it is below zero, subtract by columns."""
    width = max(len(str(a)), len(str(b)))
    x, y = str(a).zfill(width), str(b).zfill(width)
    lines, borrow = [f"{x}-{y}", *_comparison(x, y)], 0
    if a < b:
        x, y = y, x
    lines.append(f"{x}-{y}")  # columns always stand below their problem, as in a sum
    for p, q in zip(reversed(x), reversed(y), strict=True):
        digit = int(p) - int(q) - borrow
        lines.append(f"{p}-{q}-{borrow}={digit % 10}b{int(digit < 0)}")
        borrow = int(digit < 0)
    return "\n".join(lines)


def worked_answer(a: int, operator: str, b: int) -> str:
    """Return the assistant's whole reply."""
    if operator == "+":
        return f"{addition_steps(a, b)}\nAnswer: {a + b}"
    return f"{subtraction_steps(a, b)}\nAnswer: {a - b}"


def _question(rng: Random, split: Split, a: int, operator: str, b: int) -> str:
    if rng.random() < 0.1 and (operator == "+" or a >= b):
        stories = _SUM_STORIES if operator == "+" else _DIFFERENCE_STORIES
        name, item = person(rng, split), rng.choice(ITEMS)
        return rng.choice(stories).format(a=a, b=b, n=name, i=item)
    words = _SUM_FORMS if operator == "+" else _DIFFERENCE_FORMS
    if rng.random() < 0.3:
        return rng.choice(words).format(a=a, b=b)
    space = " " if rng.random() < 0.6 else ""
    return rng.choice(_SYMBOL_FORMS).format(e=f"{a}{space}{operator}{space}{b}")


def _operands(rng: Random, split: Split) -> tuple[int, str, int]:
    a, b = number_of_digits(rng, 5), number_of_digits(rng, 5)
    operator = "-" if rng.random() < (0.65 if split is Split.TRAIN else 0.5) else "+"
    if operator == "-" and split is Split.TRAIN and rng.random() < 0.3:
        low = 10 ** (len(str(a)) - 1)  # as many digits: which is larger takes a closer look
        return a, operator, rng.randint(low if a > 9 else 0, 10 * low - 1)
    if operator == "-":
        if split is Split.TRAIN and rng.random() < 0.25:  # close: leading zeros to drop
            b = max(0, a + rng.randint(-99, 99))
        if a < b and rng.random() < 0.5:
            a, b = b, a
    return a, operator, b


def exchange(rng: Random, split: Split) -> tuple[str, str, str]:
    """Draw a question, its worked answer, and the kind of the problem."""
    while True:
        a, operator, b = _operands(rng, split)
        if in_split((a, operator, b), split):
            break
    kind = "addition" if operator == "+" else "subtraction"
    return _question(rng, split, a, operator, b), worked_answer(a, operator, b), kind


def sample(rng: Random, split: Split) -> Document:
    """Draw a sum or difference of numbers up to five digits; one to three of them in training."""
    question, reply, kind = exchange(rng, split)
    exchanges = [(question, reply)]
    if split is Split.TRAIN:
        while rng.random() < 0.25 and len(exchanges) < 3:
            exchanges.append(exchange(rng, split)[:2])
    return conversation("arithmetic", kind, exchanges, rng.choice(SYSTEM_TEXTS))


def sample_product(rng: Random, split: Split) -> Document:
    """Draw one entry of the multiplication table up to twelve."""
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    question = rng.choice(_PRODUCT_FORMS).format(a=a, b=b)
    exchange = (question, f"Answer: {a * b}")
    return conversation("products", "product", [exchange], rng.choice(SYSTEM_TEXTS))
