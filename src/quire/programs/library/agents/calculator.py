"""A calculator for agents: arithmetic on a parsed expression, without Python's ``eval``.

``calc("(12+30)*2")`` is ``"84"``. Supports numbers, ``+ - * / // % **`` and parentheses; sizes are
bounded.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable

from quire.core.errors import InvalidArgument

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
MAX_CHARS = 1000
MAX_BITS = 4096


def calc(expression: str) -> str:
    """The value of ``expression``: integers without a decimal point, other numbers with two decimal
    places.

    Raises:
        InvalidArgument: not arithmetic, undefined, or too large.
    """
    if len(expression) > MAX_CHARS:
        raise InvalidArgument(
            f"the expression has {len(expression)} characters; at most {MAX_CHARS} are allowed"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            tree = ast.parse(expression.strip(), mode="eval")
        return _spelled(_value(tree.body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise InvalidArgument(f"not an expression: {expression!r}") from exc
    except (ArithmeticError, TypeError) as exc:
        raise InvalidArgument(f"{expression}: {exc}") from exc


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first, second = _value(left), _value(right)
            if isinstance(op, ast.Pow):
                _check_power(first, second)
            return _bounded(_BINARY[type(op)](first, second))
    raise InvalidArgument(f"not arithmetic: {ast.unparse(node)!r}; use numbers and + - * / ( )")


def _check_power(base: Number, exponent: Number) -> None:
    if abs(exponent) > MAX_BITS or int(base).bit_length() * abs(exponent) > MAX_BITS:
        raise OverflowError("the result is too large")


def _bounded(value: Number) -> Number:
    if isinstance(value, complex):
        raise TypeError("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError("the result is too large")
    return value


def _spelled(value: Number) -> str:
    if isinstance(value, int):
        return str(value)
    rounded = round(value, 2)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)
