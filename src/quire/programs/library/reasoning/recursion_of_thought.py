"""Recursion of thought: a problem is divided, and each part is solved in a separate context (Lee
and Kim 2023; Pie Table 2).

    quire run recursion_of_thought -- \\
        "34 boxes of 7 eggs, 19 eggs given away. How many are left?" --compare

The model divides the question: it writes ``calc(34*7)`` as for a tool, but there is no tool. The
problem goes to the same program again, one level deeper. Problems that the model can solve in one
context (a sum or a difference of two numbers) are asked directly; others are divided by rule:
parentheses from the inside, a product by halves (34*7 = 34*6 + 34, 34*6 = 34*3 + 34*3). Independent
parts are solved concurrently, in the same batches, and each context holds only its own problem.
This lets a model that is reliable only for short texts answer long questions.

::

    question ─► calc(34*7) ─► 34*6 + 34 ─► 34*3 + 34*3 ─► 34*2 + 34 ─► 34 + 34
                                                                       [What is 34 + 34?  68]
                                                          [What is 68 + 34?  102]
                                           [What is 102 + 102?  204]    one context for each,
                              [What is 204 + 34?  238]                  none knows of the others
"""

from __future__ import annotations

import ast
import asyncio
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.agents.react import SYSTEM, react_loop
from quire.programs.library.answers import Compare, ask, final_answer, plain_answer
from quire.programs.sdk import Context, inferlet

MAX_DEPTH = 32
MAX_FACTOR = 1 << 16


class Recursion:
    """Solves problems by asking the model for their smallest parts; equal parts are asked once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, asyncio.Task[int]] = {}
        self.depth = 0

    @property
    def num_asked(self) -> int:
        return len(self._known)

    async def solve(self, problem: str) -> int:
        """The value of an expression of integers, ``+ - *`` and parentheses.

        Raises:
            InvalidArgument: another expression, or an answer of the model that is not a number.
        """
        try:
            tree = ast.parse(problem.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
            raise InvalidArgument(f"not an expression: {problem!r}") from exc
        return await self._value(tree, 1)

    async def _value(self, node: ast.expr, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"the problem is nested over {MAX_DEPTH} deep")
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -await self._value(operand, depth + 1)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
                parts = (self._value(side, depth + 1) for side in (left, right))
                first, second = await asyncio.gather(*parts)
                return await self._combine(first, op, second, depth)
        raise InvalidArgument(f"neither a number nor + - * of them: {ast.unparse(node)!r}")

    async def _combine(self, first: int, op: ast.operator, second: int, depth: int) -> int:
        if isinstance(op, ast.Mult):
            return await self._product(first, second, depth)
        return await self._sum(first, second if isinstance(op, ast.Add) else -second, depth)

    async def _product(self, first: int, second: int, depth: int) -> int:
        """Halve the smaller factor repeatedly, so that the depth is logarithmic."""
        factor, times = sorted((abs(first), abs(second)), reverse=True)
        sign = 1 if (first < 0) == (second < 0) else -1
        if times > MAX_FACTOR:
            raise InvalidArgument(f"{first}*{second}: one factor must be at most {MAX_FACTOR}")
        if times < 2:
            return sign * factor * times
        half = await self._product(factor, times // 2, depth + 1)
        both = await self._sum(half, half, depth + 1)
        return sign * (await self._sum(both, factor, depth + 1) if times % 2 else both)

    async def _sum(self, first: int, second: int, depth: int) -> int:
        """A sum of numbers of any sign, as one question with numbers that are not negative."""
        self.depth = max(self.depth, depth)
        if first >= 0 and second >= 0:
            return await self._ask(f"{first} + {second}")
        if first < 0 and second < 0:
            return -await self._ask(f"{-first} + {-second}")
        return await self._ask(f"{max(first, second)} - {-min(first, second)}")

    async def _ask(self, problem: str) -> int:
        """Solve a smallest part: one question in one context."""
        if problem not in self._known:
            self._known[problem] = asyncio.ensure_future(self._asked(problem))
        return await asyncio.shield(self._known[problem])

    async def _asked(self, problem: str) -> int:
        answer = final_answer(await ask(self._api, f"What is {problem}?"))
        try:
            return int(answer)
        except ValueError as exc:
            raise InvalidArgument(f"the model's answer to {problem!r} is {answer!r}") from exc


@inferlet(
    "recursion_of_thought", traits={"Decode": 1, "Messaging": 1, "Tokenize": 1}, restartable=True
)
async def recursion_of_thought(
    api: Api, question: str, *, compare: Compare = False
) -> dict[str, Any]:
    """Answer a question by dividing it until the model can answer the parts."""
    recursion = Recursion(api)

    async def deeper(problem: str) -> str:
        await api.send(f"calc({problem})")
        return str(await recursion.solve(problem))

    system = SYSTEM.format(tools="calc(expression), lookup(name, key)")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    async with Context(api) as ctx:
        ctx.fill_chat(messages)
        result = await react_loop(ctx, {"calc": deeper})
    return {
        "answer": result.answer,
        "problems": [step.action for step in result.steps],
        "num_asked": recursion.num_asked,
        "depth": recursion.depth,
        **await plain_answer(api, question, compare),
    }
