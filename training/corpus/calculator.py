"""Implements the calculator behind ``calc(...)`` and the one-line programs: a whitelist over Python
syntax."""

import ast
import operator
import warnings
from collections.abc import Callable
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "sorted": sorted,
    "len": len,
}
_METHODS = frozenset({"count", "upper", "lower"})


class CalculationError(ValueError):
    """The text is not an expression that the calculator accepts."""


def format_number(value: float) -> str:
    """Whole numbers without a point, others rounded to two places."""
    rounded = round(value, 2)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)


def calculate(expression: str) -> str:
    """Return the value of an expression of ``+ - * /`` and parentheses, as the tool prints it."""
    return format_number(_number(_evaluate(_parse(expression), programs=False)))


def run_program(source: str) -> str:
    """Return what a line of the form ``print(expression)`` prints."""
    call = _parse(source)
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise CalculationError(f"not a call of print: {source!r}")
    if call.func.id != "print" or len(call.args) != 1 or call.keywords:
        raise CalculationError(f"not a print of one value: {source!r}")
    value = _evaluate(call.args[0], programs=True)
    return format_number(value) if isinstance(value, float) else str(value)


def _parse(source: str) -> ast.expr:
    try:
        with warnings.catch_warnings():  # the parser warns about text such as 3and
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError) as exc:
        raise CalculationError(f"not an expression: {source!r}") from exc


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise CalculationError(f"not a number: {value!r}")
    return value


def _evaluate(node: ast.expr, *, programs: bool) -> Any:
    try:
        return _value(node, programs=programs)
    except (ArithmeticError, TypeError, AttributeError, ValueError) as exc:
        raise CalculationError(str(exc)) from exc


def _value(node: ast.expr, *, programs: bool) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            operands = _value(left, programs=programs), _value(right, programs=programs)
            return _BINARY[type(op)](*(_number(value) for value in operands))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(_value(operand, programs=programs))
    if programs:
        return _program_value(node)
    raise CalculationError(f"not allowed: {ast.unparse(node)}")


def _program_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.List(elts=elements):
            return [_value(element, programs=True) for element in elements]
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(arg, programs=True) for arg in args))
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args) if name in _METHODS:
            method = getattr(str(_value(owner, programs=True)), name)
            return method(*(_value(arg, programs=True) for arg in args))
        case ast.Subscript(value=owner, slice=ast.Slice(lower=None, upper=None, step=step)):
            if step is not None and ast.unparse(step) == "-1":
                return _value(owner, programs=True)[::-1]
    raise CalculationError(f"not allowed: {ast.unparse(node)}")
