"""The execution of one program on a loop, from its first step until everything it held is freed.

Owns the program's task and child tasks, and the state for each kind of end. Lives on the loop; only
``request_cancel`` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVarTuple

from quire.core.errors import (
    ProgramCancelled,
    ProgramFailed,
    QuireError,
    from_record,
)
from quire.programs.api import Api, Issuer
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.running import ProgramState, RunningProgram
from quire.programs.shown_values import problem_with
from quire.programs.tracebacks import program_failed

Ts = TypeVarTuple("Ts")

logger = logging.getLogger(__name__)

current_execution: ContextVar[Execution | None] = ContextVar("current_execution", default=None)
"""The program to which the running code belongs; child tasks inherit it."""


class ProgramTask(asyncio.Task[Any]):
    """A task that knows its program, so that a watchdog can name it."""

    execution: Execution


class Execution:
    """Runs ``inferlet`` once, with ``args`` and ``named`` converted for its entry.

    ``grace_s``: how long a cancelled program may clean up.
    """

    def __init__(
        self,
        inferlet: Inferlet,
        args: Sequence[Any],
        named: Mapping[str, Any],
        issuer: Issuer,
        grace_s: float,
    ) -> None:
        self.inferlet = inferlet
        self.issuer = issuer
        self._args, self._named = args, named
        self._grace_s = grace_s
        self._loop = issuer.loop
        self._grace: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._children: set[ProgramTask] = set()
        self._stop_error: QuireError | None = None
        self._stop_state = ProgramState.CANCELLED
        self.ended = asyncio.Event()
        self.api: Api
        self.running: RunningProgram

    def start(self) -> None:
        """Start on the loop. A program that was cancelled before never executes a step."""
        if self._stop_error is not None:
            self._conclude(self._stop_state, None, self._stop_error)
            return
        token = current_execution.set(self)
        try:
            self._task = self._loop.create_task(
                self._run(), name=f"program {self.running.id} ({self.inferlet.name})"
            )
        finally:
            current_execution.reset(token)
        self._task.add_done_callback(self._never_began)

    def _never_began(self, _: asyncio.Task[None]) -> None:
        if not self.ended.is_set() and self._stop_error is not None:
            self._conclude(self._stop_state, None, self._stop_error)

    def request_cancel(self, reason: str) -> None:
        """Ask the program to end. May be called from any thread."""
        error = ProgramCancelled(f"program {self.inferlet.name!r}: {reason}")
        on_loop(self._loop, self.stop, ProgramState.CANCELLED, error)

    def terminated(self, error: QuireError) -> None:
        """Stop the program: the node has ended it and freed what it held."""
        self.stop(ProgramState.TERMINATED, error)

    def stop(self, state: ProgramState, error: QuireError) -> None:
        """Cancel the program's task; after the grace time its commands are cancelled, too."""
        if self.ended.is_set():
            return
        if self._stop_error is None:
            self._stop_error, self._stop_state = error, state
            self._grace = self._loop.call_later(self._grace_s, self.issuer.close, "cancelled")
        if self._task is not None:
            self._task.cancel()

    def adopt(self, task: ProgramTask) -> None:
        """Note that the program has started ``task``."""
        task.execution = self
        self._children.add(task)
        task.add_done_callback(self._children.discard)

    async def _run(self) -> None:
        self.running.advance(ProgramState.RUNNING)
        result, failure = None, None
        try:
            result = await self.inferlet.main(self.api, *self._args, **self._named)
            _check_json(self.inferlet.name, result)
            await self._drain()
        except asyncio.CancelledError as exc:
            if self._stop_error is None:  # the program cancelled itself
                failure = self._failed(exc)
        except ProgramFailed as exc:
            # the program may have raised a subclass of its own without our message
            failure = exc if _is_plain(exc) else self._failed(exc)
        except BaseException as exc:
            # SystemExit too: it ends the program, never the loop that it shares
            failure = self._failed(exc)
        finally:
            await self._end_children()
        if self._stop_error is not None:
            self._conclude(self._stop_state, None, self._stop_error)
        elif failure is not None:
            self._conclude(ProgramState.FAILED, None, failure)
        else:
            self._conclude(ProgramState.FINISHED, result, None)

    def _failed(self, error: BaseException) -> ProgramFailed:
        program = self.inferlet
        return program_failed(program.name, program.source, error, program.folder)

    async def _drain(self) -> None:
        """Wait for issued commands, and raise a failure that no await has raised."""
        await self._cancel_children()
        await self.issuer.drain()
        unseen = self.issuer.unseen_failures()
        if unseen:
            raise from_record(unseen[0])

    async def _cancel_children(self) -> None:
        leaked = [task for task in self._children if task is not asyncio.current_task()]
        if leaked:
            names = tuple(task.get_name() for task in leaked)
            self.running.leaked_tasks = names
            logger.warning(
                "program %s (%s) ended with %d tasks running, which are cancelled: %s",
                self.running.id,
                self.inferlet.name,
                len(leaked),
                ", ".join(names),
            )
        await self._end_children()

    async def _end_children(self) -> None:
        children = [task for task in self._children if task is not asyncio.current_task()]
        for task in children:
            task.cancel()
        if not children:
            return
        waiting = asyncio.ensure_future(asyncio.wait(children, timeout=self._grace_s))
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                continue  # a second cancel must not skip the clean-up, which is bounded in time
        for task in children:
            if not task.done():
                logger.error("task %s of program %s does not end", task.get_name(), self.running.id)

    def _conclude(self, state: ProgramState, result: Any, error: QuireError | None) -> None:
        if self._grace is not None:
            self._grace.cancel()
        self.running.unobserved_failures = self.issuer.unseen_failures()
        self.issuer.close(state.value)
        self.ended.set()
        self.running.advance(state, result=result, error=error)


def _is_plain(error: ProgramFailed) -> bool:
    return type(error) is ProgramFailed and type(error.message) is str


def _check_json(name: str, result: Any) -> None:
    if inspect.iscoroutine(result):
        result.close()  # it was never awaited, as the error below says
        raise ProgramFailed(
            f"program {name!r} returned the coroutine {result.__qualname__}: write "
            f"'return await {result.__name__}(...)'"
        )
    try:
        json.dumps(result)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ProgramFailed(
            f"program {name!r} returned a value of type {type(result).__name__}: {exc}; "
            "return a string or another JSON value"
        ) from exc
    if (problem := problem_with(result)) is not None:
        raise ProgramFailed(
            f"program {name!r} returned a value that cannot be shown: {problem}; return a simpler "
            "value, or its JSON as a string"
        )


def on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call ``callback`` on ``loop``: at once if the caller runs on it, else soon."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        callback(*args)
    else:
        loop.call_soon_threadsafe(callback, *args)


async def contained(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a child task; ``sys.exit`` in it fails that task and does not stop the shared loop."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as exc:
        raise RuntimeError(f"a task of a program raised {type(exc).__name__}") from exc
