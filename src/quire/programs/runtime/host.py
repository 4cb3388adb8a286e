"""The programs of one event loop: launch, their tasks, shutdown.

Owns the loop's task factory, through which every task knows its program. Works on any running loop;
the native runtime uses a loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any

from quire.core.errors import Draining, QuireError, TraitMissing
from quire.core.events import REFUSED
from quire.core.interfaces import ServedModel
from quire.core.traits import ENCODER_TRAITS
from quire.programs.api import Api, Issuer
from quire.programs.arguments import NO_NAMES, bind
from quire.programs.inferlet import Inferlet, StatedTraits, check_versions
from quire.programs.runtime.execution import (
    Execution,
    ProgramTask,
    contained,
    current_execution,
    on_loop,
)
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.runtime.running import Connect, RunningProgram
from quire.programs.services.mailbox import Mailbox, MailboxLimits, ProgramMailbox
from quire.programs.services.network import Network
from quire.programs.tracebacks import own_traceback

logger = logging.getLogger(__name__)


class ProgramHost:
    """Runs programs on ``loop``. ``launch`` and ``programs`` may be called from any thread.

    ``grace_s``: how long a cancelled program may clean up before its commands are cancelled.
    ``new_mailbox(name)`` replaces the in-process mailboxes, whose bounds are ``mailbox_limits``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        network: Network | None = None,
        mailbox_limits: MailboxLimits | None = None,
        new_mailbox: Callable[[str], Mailbox] | None = None,
        grace_s: float = 5.0,
    ) -> None:
        self.loop = loop
        self._network = network
        self._new_mailbox = new_mailbox or partial(Mailbox, limits=mailbox_limits)
        self._grace_s = grace_s
        self._executions: dict[RunningProgram, Execution] = {}  # calls of a session share its id
        self._closed = False
        self._lock = threading.Lock()
        self._previous_factory = loop.get_task_factory()
        loop.set_task_factory(self._new_task)

    def launch(
        self,
        inferlet: Inferlet,
        args: Sequence[str],
        connect: Connect,
        named: Mapping[str, str] = NO_NAMES,
    ) -> RunningProgram:
        """Start ``inferlet``; see ``Runtime.launch``.

        Raises:
            InvalidArgument: an argument is missing, unknown, or of the wrong type.
            TraitMissing: the default model lacks a trait that the manifest names.
            EngineLost: no model is loaded yet, and it needs one.
            Draining: the host is closing.
        """
        with self._lock:  # a concurrent shutdown must either see this program or refuse it
            if self._closed:
                raise Draining("this runtime is closing and starts no further programs")
            return self._launch(inferlet, args, connect, named)

    def _launch(
        self,
        inferlet: Inferlet,
        args: Sequence[str],
        connect: Connect,
        named: Mapping[str, str],
    ) -> RunningProgram:
        by_place, by_name = bind(inferlet.name, inferlet.main, args, named)
        issuer = Issuer(self.loop)
        execution = Execution(inferlet, by_place, by_name, issuer, self._grace_s)
        issuer.on_end = execution.terminated
        port = connect(issuer, self.loop)
        issuer.attach(port)
        try:
            if inferlet.needs_model:
                check_traits(inferlet.name, inferlet.traits, issuer.model())
        except QuireError:
            port.close(REFUSED)
            raise
        mailbox = self._new_mailbox(inferlet.name)
        running = RunningProgram(port.program, inferlet.name, mailbox, execution.request_cancel)
        execution.running = running
        network = self._network
        # a guest's network asks its host, which checks the manifest
        if isinstance(network, Network):
            network = network.within(inferlet.hosts)
        connection: ProgramMailbox = mailbox
        if isinstance(port, ReplayPort):
            connection = port.mailbox(mailbox)
            network = None if network is None else port.network(network)
        execution.api = Api(issuer, args=args, mailbox=connection, network=network, log=running.log)
        self._executions[running] = execution
        running.add_done_callback(self._forget)
        on_loop(self.loop, execution.start)
        return running

    def _forget(self, ended: RunningProgram) -> None:
        self._executions.pop(ended, None)

    def programs(self) -> list[RunningProgram]:
        return [execution.running for execution in list(self._executions.values())]

    def current_program(self) -> str | None:
        """The program that the loop runs now, for the watchdog's thread."""
        task = asyncio.current_task(self.loop)
        if not isinstance(task, ProgramTask):
            return None
        running = task.execution.running
        return f"{running.id} ({running.name})"

    def report_uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For ``set_exception_handler``: log the exceptions of tasks that were not awaited, to
        their program's log."""
        task, error = context.get("future"), context.get("exception")
        if not isinstance(task, ProgramTask) or error is None:
            loop.default_exception_handler(context)
            return
        running = task.execution.running
        program = task.execution.inferlet
        trace = own_traceback(error, program.source, program.folder)
        text = f"{task.get_name()} failed and was not awaited\n{trace}"
        logger.error("program %s (%s): %s", running.id, running.name, text)
        running.log("error", text)

    async def shutdown(self) -> None:
        """Cancel every program, wait until all have ended, restore the loop's task factory."""
        with self._lock:
            self._closed = True
        for execution in list(self._executions.values()):
            execution.request_cancel("the runtime is closing")
        for execution in list(self._executions.values()):
            await execution.ended.wait()
        self.loop.set_task_factory(self._previous_factory)

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        context: Context | None = None,
        name: str | None = None,
        **options: Any,
    ) -> asyncio.Future[Any]:
        execution = context.get(current_execution, None) if context else current_execution.get()
        if execution is None or not asyncio.iscoroutine(work):
            return asyncio.Task(work, loop=loop, context=context, name=name, **options)
        task = ProgramTask(contained(work), loop=loop, context=context, name=name, **options)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step
        execution.adopt(task)
        return task


def check_traits(name: str, traits: StatedTraits, model: ServedModel) -> None:
    """Raise ``TraitMissing`` unless this release has the versions that ``traits`` names, and
    ``model`` or the node itself has all of the traits."""
    check_versions(name, traits)
    missing = sorted(set(traits) - model.traits)
    if not missing:
        return
    of_encoders = sorted(ENCODER_TRAITS.intersection(missing))
    if of_encoders:
        raise TraitMissing(
            f"program {name!r} needs {', '.join(of_encoders)}, and this node has no encoder: serve "
            "one with --encoder NAME=DIRECTORY"
        )
    raise TraitMissing(
        f"program {name!r} needs {', '.join(missing)}, which model {model.id!r} does not "
        "have: serve a model that has"
    )


def check_any_model(name: str, traits: StatedTraits, models: Sequence[ServedModel]) -> None:
    """Raise the ``TraitMissing`` of the first model if none of ``models`` has all of ``traits``; do
    nothing while no model is loaded."""
    refusals: list[TraitMissing] = []
    for model in models:
        try:
            check_traits(name, traits, model)
        except TraitMissing as exc:
            refusals.append(exc)
    if models and len(refusals) == len(models):
        raise refusals[0]
