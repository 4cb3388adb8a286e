"""A Jinja environment with limits on the time and memory of a template.

Templates come with model directories and are not trusted. Jinja's immutable sandbox keeps them from
reaching Python; this module adds a budget: every loop iteration, macro call, string operation and
filter is charged, and results of operations that multiply text are measured before they are
computed. A list can contain another list many times and take little memory, but its text is long;
containers are therefore measured by their text, shared parts once for each occurrence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_FILTERS = (
    "abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "groupby", "int", "items", "join", "last", "length", "list", "lower", "map", "max",
    "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr",
    "sort", "string", "sum", "title", "trim", "unique", "upper",
)  # fmt: skip
"""Filters that models' templates use and that cannot produce large results from small inputs."""


class TemplateLimit(TemplateError):
    """The template exceeds its time or size limit."""


class Budget:
    """The limits of one rendering. ``num_operations``: operations that are left, which limits time;
    ``num_chars``: the largest size of any text."""

    def __init__(self, num_operations: int, num_chars: int) -> None:
        self.num_operations = num_operations
        self.num_chars = num_chars

    def charge(self, operations: int = 1) -> None:
        self.num_operations -= operations
        if self.num_operations < 0:
            raise TemplateLimit("the template executes too many operations")

    def check_size(self, size: int) -> None:
        if size > self.num_chars:
            raise TemplateLimit(f"the template makes a text of {size} characters")
        self.charge(1 + size // 1024)

    def weigh(self, value: Any) -> int:
        """The number of items and characters of ``value``, including nested containers; charged
        while it is counted."""
        size, waiting = _num_items(value), [value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                waiting.extend(part)
                part = part.values()
            elif not isinstance(part, list | tuple):
                continue
            self.charge(1 + len(part) // 16)
            for item in part:
                size += _num_items(item)
                if isinstance(item, list | tuple | dict):
                    waiting.append(item)
            if size > self.num_chars:
                raise TemplateLimit(f"the template makes a value of over {size} items")
        self.charge(1 + size // 1024)
        return size


class _Generation(Extension):
    """``{% generation %}`` marks an assistant's part for training; renders its contents."""

    tags = {"generation"}  # noqa: RUF012 - the base class's shape

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """One environment per template; ``budget`` is set for each rendering."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        self.budget = Budget(0, 0)
        self.filters = {name: self._measured(self.filters[name]) for name in _FILTERS}
        self.filters["replace"] = self._replace
        self.filters["tojson"] = _to_json
        self.globals = {
            "range": self._range,
            "dict": dict,
            "namespace": self.globals["namespace"],
            "raise_exception": _raise,
            "strftime_now": lambda pattern: datetime.now().strftime(pattern),
            "__charge__": self._charge,
            "__concat__": self._concat,
            "__weigh__": self._weigh,
            "__slice__": self._slice,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _meter(template)
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.budget.charge()
        if operator == "**":
            raise SecurityError("a template may not use **")
        if operator == "*":
            self.budget.check_size(self.budget.weigh(left) * _times(right))
            self.budget.check_size(self.budget.weigh(right) * _times(left))
        elif operator == "+":
            self.budget.check_size(self.budget.weigh(left) + self.budget.weigh(right))
        elif isinstance(left, str):
            raise SecurityError("a template may not format with %: use ~")
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.budget.charge()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            self.budget.check_size(len(owner))
            if name in ("center", "ljust", "rjust", "zfill", "expandtabs", "translate"):
                raise SecurityError(f"a template may not call str.{name}")
            if name == "replace" and len(args) >= 2:
                return self._replace(owner, *args)
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
                self.budget.check_size(
                    sum(_num_items(item) for item in args[0]) + len(owner) * len(args[0])
                )
        result = super().call(__context, __obj, *args, **kwargs)
        self.budget.weigh(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("a template may not call str.format: use ~")
        return None

    def _charge(self) -> str:
        self.budget.charge()
        return ""

    def _concat(self, *parts: Any) -> str:
        self.budget.check_size(sum(map(self.budget.weigh, parts)))
        return "".join(map(str, parts))

    def _weigh(self, value: Any) -> Any:
        self.budget.weigh(value)
        return value

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        part = value[start:stop:step]
        self.budget.check_size(_num_items(part))
        return part

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.budget.charge(len(numbers))
        return numbers

    def _replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        whole = str(text)
        num_found = whole.count(old) if count < 0 else min(count, whole.count(old))
        self.budget.check_size(len(whole) + num_found * max(0, len(new) - len(old)))
        return whole.replace(old, new, count)

    def _measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with its arguments and its result charged."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            self.budget.charge(1 + sum(_num_items(argument) for argument in args) // 64)
            for argument in (*args[1:], *kwargs.values()):
                self.budget.check_size(_times(argument))
                self.budget.charge(_times(argument) // 64)
            result = function(*args, **kwargs)
            self.budget.weigh(result)
            return result

        for mark in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(function, mark):
                setattr(measured, mark, getattr(function, mark))
        return measured


def _meter(node: nodes.Node) -> None:
    """Charge every loop iteration and macro call of a parsed template, and the results of its
    expressions."""
    for child in list(node.iter_child_nodes()):
        _meter(child)
    for field in node.fields:
        value = getattr(node, field)
        if isinstance(value, nodes.Expr):
            setattr(node, field, _metered(value))
        elif isinstance(value, list):
            value[:] = [_metered(x) if isinstance(x, nodes.Expr) else x for x in value]
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
        charge = _call("__charge__", [], node.lineno)
        node.body.insert(0, nodes.Output([charge], lineno=node.lineno))


def _metered(value: nodes.Expr) -> nodes.Expr:
    """``value``, measured if it concatenates text, creates a container, compares or copies a
    slice."""
    if isinstance(value, nodes.Concat):
        return _call("__concat__", value.nodes, value.lineno)
    if isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice):
        bounds = (value.arg.start, value.arg.stop, value.arg.step)
        nothing = nodes.Const(None, lineno=value.lineno)
        return _call("__slice__", [value.node, *(one or nothing for one in bounds)], value.lineno)
    if isinstance(value, nodes.List | nodes.Dict) or _is_new_tuple(value):
        return _call("__weigh__", [value], value.lineno)
    if isinstance(value, nodes.Compare):
        value.expr = _call("__weigh__", [value.expr], value.lineno)
        for operand in value.ops:
            operand.expr = _call("__weigh__", [operand.expr], value.lineno)
    return value


def _is_new_tuple(value: nodes.Expr) -> bool:
    return isinstance(value, nodes.Tuple) and value.ctx == "load"


def _call(function: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    name = nodes.Name(function, "load", lineno=lineno)
    return nodes.Call(name, arguments, [], None, None, lineno=lineno)


def _num_items(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1


def _times(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 1


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``tojson`` without HTML escapes, as models' templates expect."""
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("tojson: an indent of 0 to 16 is allowed")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise TemplateError(message)
