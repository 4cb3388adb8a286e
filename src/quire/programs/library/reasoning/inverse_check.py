"""A check of sums and differences without a calculator: the model inverts its own answer.

``a + b = c`` holds if ``c - b`` is ``a``, and ``a - b = c`` if ``b + c`` is ``a``. The inverse is
another question than the original one, so an error in one is seldom repeated in the other. Used by
``tree_of_thought``, ``mcts`` and ``graph_of_thought`` as the value of finished thoughts.
"""

from __future__ import annotations

import re

from quire.programs.api import Api
from quire.programs.library.answers import ask, final_answer

_PROBLEM = re.compile(r"(\d+)\s*([+-])\s*(\d+)")
_NUMBER = re.compile(r"\d+")
_WHOLE = re.compile(r"-?\d+")


def inverse(question: str, answer: str) -> tuple[str, str] | None:
    """The problem that inverts ``question``, and its result if ``answer`` is right.

    ``None`` if the question is not one sum or difference of two numbers, or the answer is not a
    number.
    """
    found = _PROBLEM.search(question)
    if found is None or len(_NUMBER.findall(question)) != 2 or not _WHOLE.fullmatch(answer):
        return None
    first, operator, second = int(found[1]), found[2], int(found[3])
    result = int(answer)
    if operator == "+":
        return f"{result} - {second}", str(first)
    if result < 0:  # a - b = -c, so a + c = b: the model only adds numbers that are not negative
        return f"{first} + {-result}", str(second)
    return f"{second} + {result}", str(first)


async def undoes(api: Api, question: str, answer: str) -> bool:
    """Whether the model's answer to the inverse problem, in a separate context, is the original
    number."""
    undone = inverse(question, answer)
    if undone is None:
        return False
    problem, expected = undone
    return final_answer(await ask(api, f"What is {problem}?")) == expected
