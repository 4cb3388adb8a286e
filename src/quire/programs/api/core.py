"""Trait Core: arguments, models, traits, queues; time, randomness, logs, children. Served by the
node itself.
"""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from quire.core.commands import Synchronize
from quire.core.errors import InvalidArgument
from quire.core.ids import ModelId, ThreadId
from quire.core.quotas import Quotas
from quire.core.traits import Trait
from quire.programs.api.children import Child
from quire.programs.api.handles import Queue
from quire.programs.api.integers import whole_number
from quire.programs.api.issuer import Issuer, nothing
from quire.programs.api.model import Model
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply
from quire.programs.inferlet import Inferlet
from quire.programs.parameters import as_text

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")
MAX_LOG_BYTES = 1 << 16

Log = Callable[[str, str, Mapping[str, Any]], None]
"""The signature is ``log(level, message, fields)``."""


def log_to_process(level: str, message: str, fields: Mapping[str, Any]) -> None:
    """Log to the process's own log, for programs that no runtime has launched."""
    logger.log(logging.getLevelNamesMapping()[level.upper()], "%s %s", message, dict(fields))


class CoreFunctions(TraitFunctions):
    trait = Trait.CORE

    def __init__(self, issuer: Issuer, args: Sequence[str] = (), log: Log = log_to_process) -> None:
        super().__init__(issuer)
        self._args = tuple(args)
        self._log = log
        self._generators: dict[str, random.Random] = {}

    def get_arg(self) -> list[str]:
        """The arguments with which the program was launched."""
        return list(self._args)

    def available_models(self) -> list[Model]:
        """The models of this node, the default one first."""
        return [Model(self._issuer, served) for served in self._issuer.models()]

    def available_traits(self, model: Model | None = None) -> list[str]:
        """Traits of ``model`` (default: the node's default model) and of the node, by name."""
        served = model.served if model is not None else self._issuer.model()
        return sorted(served.traits)

    def create_queue(
        self,
        model: Model | ModelId | str | None = None,
        *,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        parent_thread: int | None = None,
    ) -> Queue:
        """A new command queue on ``model`` (default: the node's default model).

        ``thread``: the thread of calls that the queue serves; ``parent_thread``: the thread from
        which it was forked. ``depth``: its depth in the call graph. Higher ``priority`` runs first.

        Raises:
            InvalidArgument: no such model, or a value that is not an integer.
            QuotaExceeded: (by its first command) ``max_queues`` of the program or its tenant.
        """
        if isinstance(model, Model):
            served = model.served
        else:
            served = self._issuer.model(None if model is None else ModelId(model))
        forked_from = None
        if parent_thread is not None:
            forked_from = ThreadId(whole_number("parent_thread", parent_thread))
        return self._issuer.create_queue(
            served,
            thread=ThreadId(whole_number("thread", thread)),
            depth=whole_number("depth", depth),
            priority=whole_number("priority", priority),
            parent_thread=forked_from,
        )

    @queued
    def synchronize(self, queue: Queue) -> Reply[None]:
        """A reply that comes when every earlier command of the queue has ended.

        Raises (when awaited):
            QuireError: the first failure of the queue, if no failed command of it was awaited yet.
        """
        command = Synchronize(id=self._issuer.command_id(), after=queue.dependencies)
        reply = _Synchronized(self._issuer, queue.state, command.id, nothing)
        self._issuer.issue(queue, command, reply)
        return reply

    @queued
    def set_queue_priority(self, queue: Queue, priority: int) -> None:
        """Set the queue's priority among the queues of all programs of the tenant. Higher runs
        first."""
        self._issuer.set_priority(queue, whole_number("priority", priority))

    @queued
    def set_queue_depth(
        self, queue: Queue, depth: int, *, invocation: int = 0, remaining_us: int = 0
    ) -> None:
        """Set the step of the program's graph that the queue serves from now on: ``depth`` steps
        before the result. Commands issued before keep their step.

        ``invocation``: the step's number; commands of one program with one number, on any queue,
        are requests of one invocation (0: each is one of its own). ``remaining_us``: microseconds
        from the step's beginning to the result, as far as they are known.

        Raises:
            InvalidArgument: a value that is not an integer.
        """
        self._issuer.set_depth(
            queue,
            whole_number("depth", depth),
            whole_number("invocation", invocation),
            whole_number("remaining_us", remaining_us),
        )

    @queued
    def reset_queue(self, queue: Queue) -> None:
        """Cancel the queue's commands and clear its failure. Allocated pages and embeds stay."""
        self._issuer.reset_queue(queue)

    def close_queue(self, queue: Queue) -> None:
        """Cancel the queue's commands and free everything that was allocated on it.

        The handles of these resources are unusable from now on. Closing a closed queue does
        nothing.
        """
        self._issuer.close_queue(queue)

    async def sleep(self, seconds: float) -> None:
        """Suspend this task for ``seconds``; other tasks of the program continue.

        Raises:
            InvalidArgument: a negative value, or not a number.
        """
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise InvalidArgument(f"sleep({seconds}): give a number of seconds, 0 or more")
        await self._issuer.port.clock.sleep(seconds)

    def now(self) -> float:
        """Unix time in seconds. It may jump; measure durations with ``monotonic``."""
        return self._issuer.port.clock.unix_s()

    def monotonic(self) -> float:
        """Seconds since an unspecified moment; never decreases."""
        return self._issuer.port.clock.now_s()

    def random(self, stream: str = "") -> random.Random:
        """The program's random number generator for ``stream``, the same object on each call.

        It is seeded with the program's seed, which the launch gives or the node chooses and
        records: a program launched again with that seed draws the same numbers. Streams are
        independent, so concurrent tasks can each use their own.
        """
        if stream not in self._generators:
            text = f"{self._issuer.port.seed}/{stream}"
            self._generators[stream] = random.Random(sha256(text.encode()).digest())
        return self._generators[stream]

    def log(self, level: str, message: str, /, **fields: Any) -> None:
        """Write a line to the program's log: ``quire logs``, ``GET /v1/programs/{id}/logs``.

        ``level``: debug, info, warning or error. ``fields``: JSON values by name.

        Raises:
            InvalidArgument: no such level, fields that are not JSON, or more than 64 KiB in total.
        """
        if level not in LEVELS:
            raise InvalidArgument(f"log level {level!r}: use one of {', '.join(LEVELS)}")
        try:
            num_bytes = len(json.dumps([message, fields], allow_nan=False))
        except (TypeError, ValueError) as exc:
            raise InvalidArgument(f"log: the fields are not JSON: {exc}") from exc
        if num_bytes > MAX_LOG_BYTES:
            raise InvalidArgument(
                f"log of {num_bytes} bytes; at most {MAX_LOG_BYTES} are allowed: log less"
            )
        self._log(level, str(message), fields)

    async def launch(
        self,
        program: Inferlet | str | None = None,
        args: Sequence[Any] = (),
        *,
        named: Mapping[str, Any] | None = None,
        source: str | None = None,
        quotas: Quotas | None = None,
        seed: int | None = None,
        thread: int = 0,
    ) -> Child:
        """Start a child: a program of the library or an uploaded program by name, an ``Inferlet``,
        or Python ``source``, which always runs in the sandbox. Returns a ``Child``.

        ``args``: positional arguments; ``named``: arguments by name. Each is a string or another
        JSON value.

        The child belongs to the same tenant, reaches nothing that this program may not reach, has
        no larger quotas, and ends when this program ends. Children of a sandboxed program are
        sandboxed; it may launch itself by its own name. ``quotas`` tighten those of the child's
        manifest. ``seed``: of the child's random numbers; by default it is derived from this
        program's seed. ``thread``: the line of calls of this program that launches it (see
        ``create_queue``); the child's record has it as ``parent_thread``.

        Raises:
            UnknownHandle: no such program.
            InvalidArgument: an argument is missing, unknown, or of the wrong type.
            QuotaExceeded: the family has as many descendants as ``max_children`` allows, or the
                tenant as many programs.
            TraitMissing: the default model lacks a trait that the child needs.
        """
        if (program is None) == (source is None):
            raise InvalidArgument("launch: give either a program or source")
        if isinstance(args, str):
            raise InvalidArgument(f"launch: args is a list, not {args!r}")
        asked = {} if quotas is None else _asked(quotas)
        launched = await self._issuer.ask(
            "child.launch",
            program=program,
            source=source,
            args=[as_text(arg) for arg in args],
            quotas=asked,
            seed=seed,
            named={name: as_text(value) for name, value in (named or {}).items()},
            thread=whole_number("thread", thread),
        )
        return Child(self._issuer, launched["id"], launched["name"])

    async def join(self, child: Child) -> Any:
        """The return value of ``child``, once it has ended. Raises the error that ended it."""
        return await child.join()

    async def cancel(self, child: Child, reason: str = "cancelled by its parent") -> None:
        """Ask ``child`` to end. ``join`` returns when it has ended. Idempotent."""
        await child.cancel(reason)


class _Synchronized(Reply[None]):
    """``Synchronize`` succeeds even on a poisoned queue; awaiting this reply raises the failure."""

    __slots__ = ()

    def result(self) -> None:
        super().result()
        self.queue_state.raise_unseen()


def _asked(quotas: Quotas) -> dict[str, int | None]:
    """The quotas that differ from the defaults."""
    default = Quotas()
    return {
        name: value
        for name in Quotas.__struct_fields__
        if (value := getattr(quotas, name)) != getattr(default, name)
    }
