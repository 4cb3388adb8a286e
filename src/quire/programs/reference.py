"""Generates the reference of the programming interface from its source.

``python -m quire.programs.reference > docs/reference/api.md``
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from quire.core.traits import ENCODER_TRAITS, NODE_TRAITS, SUPERTRAITS, VERSIONS, Trait
from quire.programs.api import TRAIT_FUNCTIONS
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.sample import GREEDY

_INTRODUCTION = """\
# Programming interface

Generated from the source by `python -m quire.programs.reference`; do not edit.

A program is `async def main(api, *args)`. Every function below is a method of `api`. Nothing
blocks: issuing a command returns at once, with handles or with an awaitable reply, and commands of
one turn of the event loop leave together.

Where a function takes a **queue**, the queue is the first argument and may be omitted:
`forward(q, ...)` goes to `q`, `forward(...)` to the program's default queue. Within a queue
commands run in order. Between queues only `await`, or `forward(q.after(reply), ...)`, orders
commands.

A command that fails without being awaited poisons its queue: every later command there fails with
`QueuePoisoned`, whose cause is the first failure, until `reset_queue`. A program that ends with a
failure that was not awaited has failed.

Handles (`KvPage`, `Embed`, `TokenSlot`, `Queue`) belong to one program. Using a handle of another
program, or a freed one, raises `UnknownHandle` at once. `KvPage.fill` and `KvPage.positions` are
what the program knows about a page.
"""


def _functions(trait: type[TraitFunctions]) -> list[tuple[str, Callable[..., Any], bool]]:
    """Name, function and whether it takes a queue, in the order of the source."""
    found: list[tuple[str, Callable[..., Any], bool]] = []
    for name, value in vars(trait).items():
        if name.startswith("_"):
            continue
        if isinstance(value, queued):
            found.append((name, value.function, True))
        elif inspect.isfunction(value):
            found.append((name, value, False))
    return found


def _signature(name: str, function: Callable[..., Any], takes_queue: bool) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=plain(parameter.annotation))
        for parameter in list(signature.parameters.values())[2 if takes_queue else 1 :]
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    text = re.sub(r"'([^']*)'", r"\1", text).replace(repr(GREEDY), "greedy")
    inside = text[1:-1]
    queue = "[queue, ]" if takes_queue and inside else "[queue]" if takes_queue else ""
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    return f"{prefix}{name}({queue}{inside}) -> {plain(signature.return_annotation)}"


def plain(annotation: Any) -> str:
    """An annotation as it is written in source."""
    return str(annotation).replace("collections.abc.", "")


def body(function: Callable[..., Any]) -> str:
    """The docstring as Markdown."""
    text = inspect.getdoc(function)
    assert text, f"{function.__qualname__} has no docstring"
    text = text.replace("``", "`")
    found = re.search(r"^Raises(?: \(([^)]*)\))?:\n", text, flags=re.MULTILINE)
    if found is None:
        return text.strip()
    when = "Raises" if found[1] is None else f"Raises, {found[1]}"
    errors = re.sub(r"^ {4}(\w+): ", r"- `\1`: ", text[found.end() :], flags=re.MULTILINE)
    errors = re.sub(r"\n {8}", "\n  ", errors)
    return f"{text[: found.start()].strip()}\n\n{when}:\n\n{errors.strip()}"


def _served_by(trait: type[TraitFunctions]) -> str:
    text = inspect.getdoc(sys.modules[trait.__module__]) or ""
    served = re.search(r"((?:Served|Compiled)[^.]*)\.", text)
    assert served, f"{trait.__module__} does not say what serves it"
    return " ".join(served[1].split())


def _who_has_it(trait: Trait) -> str:
    if trait in NODE_TRAITS:
        return " Every program has it."
    return " Nodes with encoders have it." if trait in ENCODER_TRAITS else " A trait of the model."


def _section(trait: Trait, functions: type[TraitFunctions]) -> list[str]:
    needs = ", ".join(SUPERTRAITS.get(trait, ()))
    lines = [
        f"## {trait}",
        "",
        f"Version {VERSIONS[trait]}. {_served_by(functions)}."
        + (f" Needs {needs}." if needs else "")
        + _who_has_it(trait),
        "",
    ]
    for name, function, takes_queue in _functions(functions):
        lines += [
            f"### {name}",
            "",
            "```python",
            _signature(name, function, takes_queue),
            "```",
            "",
            body(function),
            "",
        ]
    return lines


def render() -> str:
    """The whole reference, Markdown."""
    lines = [_INTRODUCTION]
    for trait, functions in TRAIT_FUNCTIONS.items():
        lines += _section(trait, functions)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
