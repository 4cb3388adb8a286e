"""A strategy that can run: loaded from a file, from a text or by its shipped name, and tried.

Owns what makes a strategy acceptable. Loading runs code that may do anything, even never end, so it
runs on a thread of its own with a time limit; a strategy that is refused has changed nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import itertools
import linecache
import os
import stat
import sys
import threading
import types
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.cluster.engines.interfaces import Idle, Route
from quire.cluster.engines.strategy_errors import line_of, said_of
from quire.cluster.engines.trial import trial
from quire.cluster.strategies import SHIPPED
from quire.core.errors import InvalidArgument

MAX_SOURCE_BYTES = 1 << 20
DEFAULT_NAME = "route"
LOAD_TIMEOUT_S = 5.0

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class StrategySource:
    """Where a strategy comes from. Without a ``text``, ``name`` is that of a shipped strategy; with
    one, the name of an ``async def`` or a class in it. ``path`` is the file that the text comes
    from. ``options`` are arguments of the class."""

    name: str
    text: str | None = None
    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the strategy in messages."""
        if self.text is None:
            return self.name
        return f"{self.path or 'the text sent'}:{self.name}"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Strategy:
    """A loaded strategy. ``filename`` is that of its code's frames. ``routes_sessions``: it also
    routes the requests of sessions. ``idle``: called after each answer that calls a tool, if the
    strategy has it."""

    source: StrategySource
    route: Route
    filename: str
    routes_sessions: bool = False
    idle: Idle | None = None

    @property
    def label(self) -> str:
        return self.source.label


def read_source(text: str, options: Mapping[str, Any] | None = None) -> StrategySource:
    """Return the source that ``FILE.py:NAME`` or a shipped name stands for; without NAME it is
    ``route``.

    Raises:
        InvalidArgument: no such file, or no such shipped strategy.
    """
    options = options or {}
    if text in SHIPPED:
        return StrategySource(text, options=options)
    file, _, name = text.partition(".py:")
    path = Path(f"{file}.py") if name else Path(text)
    if path.suffix != ".py":
        raise InvalidArgument(
            f"no strategy {text[:200]!r} is shipped: name one of {', '.join(sorted(SHIPPED))}, or "
            "write FILE.py:NAME"
        )
    return StrategySource(name or DEFAULT_NAME, _text_of(path), path, options)


def _text_of(path: Path) -> str:
    """Return the content of the file. Does not wait, as for the writer of a pipe, and reads no more
    than a strategy may have."""
    try:
        with open(path, "rb", opener=_opened_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument(f"the strategy's file {str(path)!r} is no regular file")
            text = file.read(MAX_SOURCE_BYTES + 1)
        if len(text) > MAX_SOURCE_BYTES:
            raise InvalidArgument(
                f"the strategy's file {str(path)!r} has more than {MAX_SOURCE_BYTES} bytes, the "
                "most that a strategy has: import what it needs"
            )
        return text.decode("utf-8")
    except (OSError, ValueError) as exc:
        raise InvalidArgument(f"the strategy's file {str(path)!r} cannot be read: {exc}") from exc


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


async def load(source: StrategySource, timeout_s: float = LOAD_TIMEOUT_S) -> Strategy:
    """Return the strategy of ``source``, after a trial.

    Raises:
        InvalidArgument: it cannot be loaded, is no strategy, or has failed its trial; the message
            says how.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Strategy] = loop.create_future()

    def run() -> None:
        outcome: Strategy | BaseException
        try:
            trial(_build(source).route)
            outcome = _build(source)  # as it was before the trial
        except BaseException as exc:  # a source may raise anything, SystemExit too
            outcome = _refusal(source, exc)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the outcome
            loop.call_soon_threadsafe(_settle, done, outcome)

    threading.Thread(target=run, name="quire-strategy", daemon=True).start()
    try:
        return await asyncio.wait_for(done, timeout_s)
    except TimeoutError as exc:
        raise InvalidArgument(
            f"strategy {source.label} was not ready after {timeout_s:g} s: neither loading it nor "
            "its trial, in which engines answer at once, may block or wait"
        ) from exc


def _settle(done: asyncio.Future[Strategy], outcome: Strategy | BaseException) -> None:
    if done.done():
        return
    if isinstance(outcome, BaseException):
        done.set_exception(outcome)
    else:
        done.set_result(outcome)


def _build(source: StrategySource) -> Strategy:
    if source.text is None:
        found: Any = SHIPPED[source.name]
        return _strategy(source, found, inspect.getfile(found))
    filename = str(source.path or f"<strategy {next(_numbers)}>")
    module = types.ModuleType(f"quire_strategy_{next(_numbers)}")
    module.__file__ = filename
    lines = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    # dataclasses look up their module; tracebacks show these lines
    sys.modules[module.__name__], linecache.cache[filename] = module, lines
    try:
        exec(compile(source.text, filename, "exec"), module.__dict__)
        found = getattr(module, source.name, None)
        if found is None:
            raise InvalidArgument(f"strategy {source.label}: the text defines no {source.name!r}")
        made = _strategy(source, found, filename)
    except BaseException:
        _forget(module.__name__, filename, lines)
        raise
    weakref.finalize(made, _forget, module.__name__, filename, lines)
    return made


def _forget(module: str, filename: str, lines: object) -> None:
    """Drop a strategy's module and lines: nothing refers to it any more, and a router may load
    many."""
    sys.modules.pop(module, None)
    if linecache.cache.get(filename) is lines:  # not those of a later load
        del linecache.cache[filename]


def _strategy(source: StrategySource, found: Any, filename: str) -> Strategy:
    if inspect.isclass(found):
        found = _instance(source, found)
    elif source.options:
        raise InvalidArgument(f"strategy {source.label} is no class and takes no options")
    call = found if inspect.isfunction(found) else getattr(found, "__call__", None)  # noqa: B004
    if not inspect.iscoroutinefunction(call):
        raise InvalidArgument(
            f"strategy {source.label} must be an 'async def {source.name}(request, engines)', or a "
            "class with an 'async def __call__(self, request, engines)'"
        )
    idle = getattr(found, "idle", None)
    if idle is not None and not inspect.iscoroutinefunction(idle):
        raise InvalidArgument(
            f"strategy {source.label}: 'idle' must be an 'async def idle(self, request, engines)'"
        )
    routes_sessions = bool(getattr(found, "routes_sessions", False))
    return Strategy(source, found, filename, routes_sessions, idle)


def _instance(source: StrategySource, found: type) -> Any:
    signature = inspect.signature(found)
    try:
        signature.bind(**source.options)
    except TypeError as exc:
        options = [str(one.replace(annotation=one.empty)) for one in signature.parameters.values()]
        told = f"the options {', '.join(options)}" if options else "no options"
        raise InvalidArgument(f"strategy {source.label} takes {told}: {exc}") from exc
    if dataclasses.is_dataclass(found):
        for option in dataclasses.fields(found):
            if not option.init:
                continue
            if option.name in source.options:
                _check_option(source, option, source.options[option.name])
    return found(**source.options)


def _check_option(source: StrategySource, option: dataclasses.Field[Any], value: Any) -> None:
    """Check that ``value`` has the type of the option's default. A default that is no number,
    text or truth value says nothing about the others, and a required option has none."""
    wanted = type(option.default)
    if wanted not in (bool, int, float, str):
        return
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        raise InvalidArgument(
            f"strategy {source.label}: option {option.name} must be {wanted.__name__}, not "
            f"{value!r}"
        )


def _refusal(source: StrategySource, error: BaseException) -> InvalidArgument:
    if type(error) is InvalidArgument:
        message = error.message
        return InvalidArgument(message if source.label in message else f"{source.label}: {message}")
    line = line_of(error)
    where = f" (line {line})" if line else ""
    return InvalidArgument(f"strategy {source.label} is refused: {said_of(error)}{where}")
