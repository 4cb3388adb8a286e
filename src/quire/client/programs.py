"""Finds the program and the thread of it to which the running code belongs, by context variables.

Owns the programs of this process and the names of their threads. Sends nothing; ``tracking`` adds
them to requests and reports beginnings and ends to the server.

A context is copied by ``asyncio.create_task``, ``asyncio.gather``, ``asyncio.to_thread`` and by the
executors of LangChain; a plain ``threading.Thread`` begins with an empty one, see ``carried``. Code
that makes a request in a copied context gets a thread of its own then, forked from the thread of
the original context.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAIN = "main"
"""The thread that a program begins with."""


class ProgramScope:
    """One program: ``id`` names its session. ``around``: the thread in which it began, of the
    program around it. ``settings``: fields of ``POST /v1/sessions``.

    ``servers``: what ``tracking`` keeps for each server that knows this program.
    """

    def __init__(self, name: str, around: ThreadScope | None, settings: dict[str, Any]) -> None:
        self.name = name
        self.id = f"{name}-{secrets.token_hex(8)}"
        self.around = around
        self.settings = settings
        self.servers: dict[str, Any] = {}
        self.over = False
        self._numbers = itertools.count(1)

    @property
    def parent(self) -> ProgramScope | None:
        """The program around it, if there is one."""
        return None if self.around is None else self.around.program

    def lineage(self) -> list[ProgramScope]:
        """Return the programs around it, the outermost first, and itself."""
        above = [] if self.parent is None else self.parent.lineage()
        return [*above, self]

    def next_thread(self) -> str:
        return f"thread-{next(self._numbers)}"


@dataclass(frozen=True, slots=True)
class ThreadScope:
    """One thread of calls of ``program``; ``parent`` is the thread that it was forked from.
    ``owner``: the asyncio task, or else the Python thread, that makes these calls."""

    program: ProgramScope
    name: str
    parent: str | None
    owner: weakref.ref[object]


_current: ContextVar[ThreadScope | None] = ContextVar("quire_thread", default=None)
"""A context variable has to be global; each context has a value of its own."""


def enter(name: str, settings: dict[str, Any]) -> ProgramScope:
    """Begin a program in the current context, within the program that is there."""
    program = ProgramScope(name, current_thread(), settings)
    _current.set(ThreadScope(program, MAIN, None, weakref.ref(_owner())))
    return program


def leave(program: ProgramScope) -> None:
    """End ``program``. Contexts that still have it belong to the program around it from now on."""
    program.over = True
    _current.set(_living(_current.get()))


def current_thread() -> ThreadScope | None:
    """Return the thread of the running code; None outside of all programs."""
    thread, owner = _living(_current.get()), _owner()
    if thread is not None and thread.owner() is not owner:
        program = thread.program
        thread = ThreadScope(program, program.next_thread(), thread.name, weakref.ref(owner))
    _current.set(thread)
    return thread


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function``, so that it runs in the present program on any thread:
    ``threading.Thread(target=carried(work))``, ``executor.submit(carried(work), ...)``."""
    context = copy_context()

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # a context can be entered once at a time, and several threads may call this
        return context.copy().run(function, *args, **kwargs)

    return call


def _living(thread: ThreadScope | None) -> ThreadScope | None:
    while thread is not None and thread.program.over:
        thread = thread.program.around
    return thread


def _owner() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return task or threading.current_thread()
