"""What the functions of a ``StateGraph``'s nodes ask of LangGraph.

LangGraph and LangChain are not imported: a graph that uses them has them loaded.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType, ModuleType
from typing import Any


@contextmanager
def running_with(config: Any) -> Iterator[None]:
    """Let ``get_config``, ``get_runtime``, ``get_store`` and ``get_stream_writer`` of LangGraph
    find ``config``."""
    module = sys.modules.get("langchain_core.runnables.config")
    variable = getattr(module, "var_child_runnable_config", None)
    if variable is None:
        yield
        return
    token = variable.set(config)
    try:
        yield
    finally:
        variable.reset(token)


def interrupting(nodes: Any) -> str | None:
    """Return the first of ``nodes``, or of the nodes of their subgraphs, whose function calls
    ``interrupt`` of LangGraph; None if none does. What its functions call is not looked at."""
    for name, node in nodes.items():
        runnable = node.runnable
        functions = (getattr(runnable, "func", None), getattr(runnable, "afunc", None))
        if any(_interrupts(one) for one in functions if one is not None):
            return str(name)
        subgraph = getattr(getattr(runnable, "builder", None), "nodes", {})
        if (inner := interrupting(subgraph)) is not None:
            return f"{name}: {inner}"
    return None


def _interrupts(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    names = set(_names(code))
    found = [function.__globals__.get(name) for name in names]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # it has no value yet
            found.append(cell.cell_contents)
    return any(
        (isinstance(one, ModuleType) and one.__name__ == "langgraph.types" and "interrupt" in names)
        or (
            getattr(one, "__module__", None) == "langgraph.types"
            and getattr(one, "__name__", None) == "interrupt"
        )
        for one in found
    )


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function, and the functions in it, look up."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)
