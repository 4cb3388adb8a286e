"""One program in its guest: from source text to its end, turn by turn.

Connects the loop, the port and the same program host that runs trusted programs. Every error in the
program's code becomes an answer; nothing is raised to the host.
"""

from __future__ import annotations

import base64
import json
import linecache
import marshal
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

import msgspec

from quire.core.errors import InvalidArgument, QuireError, TraitMissing
from quire.core.interfaces import ProgramPort, ReplySink
from quire.core.program_files import MAIN, files_of, is_package
from quire.programs.api import Issuer
from quire.programs.inferlet import Inferlet, entry_of
from quire.programs.package import PackageModules
from quire.programs.runtime.host import ProgramHost
from quire.programs.runtime.running import RunningProgram
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.python.guest.loop import GuestLoop
from quire.programs.sandbox.python.guest.port import GuestMailbox, GuestNetwork, GuestPort
from quire.programs.sandbox.python.guest.questions import Ask, LogStream, question, served_model
from quire.programs.services.mailbox import Mailbox, MailboxLimits
from quire.programs.services.network import Network
from quire.programs.tracebacks import program_failed

SOURCE_NAME = "uploaded.py"
MODULE_NAME = "uploaded"


class GuestSession:
    """One program in its guest. ``ask`` sends a question to the host and returns its answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._calls: list[m.GuestCalls] = []
        self._network = GuestNetwork(self._calls.append)
        self._streams: list[LogStream] = []
        self._loop: GuestLoop
        self._port: GuestPort
        self._mailbox: GuestMailbox
        self._issuer: Issuer
        self._running: RunningProgram

    # -- what the host calls -----------------------------------------------------------------------

    def inspect(self, source: str) -> str:
        """``Inspected`` as JSON: the manifest of ``source``. Executes its module code."""
        self._redirect()
        try:
            program = self._load(source)
            parameters = program.parameters
        except QuireError as exc:
            return _json(m.Inspected(error=exc.record()))
        manifest = m.Manifest(
            name=program.name,
            description=program.description,
            traits={str(trait): version for trait, version in program.traits.items()},
            quotas=program.quotas,
            hosts=program.hosts,
            topics=program.topics,
            stores=program.stores,
            mcp_servers=program.mcp_servers,
            restartable=program.restartable,
            parameters=parameters,
        )
        return _json(m.Inspected(manifest=manifest))

    def compile(self, source: str) -> str:
        """The code of ``source`` as text; empty if it does not compile, which ``load`` then
        reports."""
        try:
            main = files_of(source)[MAIN] if is_package(source) else source
            return base64.b64encode(marshal.dumps(_code(main))).decode()
        except Exception:
            return ""

    def load(self, source: str, compiled: str, launch: str) -> str:
        """Start the program; return its first ``Turn`` as JSON."""
        given: m.GuestLaunch = msgspec.json.decode(launch, type=m.GuestLaunch)
        # replaces the state from the component's build; random bytes are expensive
        random.seed(given.seed)
        self._redirect()
        try:
            program = self._load(source, compiled)
        except QuireError as exc:
            return self._failed(exc)
        try:
            self._start(program, given)
            return self._turn()
        except Exception as exc:
            return self._broken(exc)

    def wake(self, events: str) -> str:
        """Process the events and run the loop; return the ``Turn`` as JSON."""
        try:
            for event in msgspec.json.decode(events, type=list[m.GuestEvents]):
                self._take(event)
            return self._turn()
        except Exception as exc:
            return self._broken(exc)

    # -- inside ------------------------------------------------------------------------------------

    def _redirect(self) -> None:
        sys.stdout, sys.stderr = LogStream(self._ask, "info"), LogStream(self._ask, "error")
        self._streams = [sys.stdout, sys.stderr]

    def _load(self, source: str, compiled: str = "") -> Inferlet:
        if is_package(source):
            files = files_of(source)
            sys.meta_path.append(PackageModules(files, SOURCE_NAME))
            source = files[MAIN]
        lines = source.splitlines(keepends=True)
        linecache.cache[SOURCE_NAME] = (len(source), None, lines, SOURCE_NAME)
        module = ModuleType(MODULE_NAME)
        module.__file__ = SOURCE_NAME
        sys.modules[MODULE_NAME] = module  # dataclasses and typing look their module up by name
        try:
            code = marshal.loads(base64.b64decode(compiled)) if compiled else _code(source)
            exec(code, vars(module))
        except TraitMissing:
            raise
        except BaseException as exc:
            failed = program_failed(MODULE_NAME, SOURCE_NAME, exc)
            raise InvalidArgument(
                f"the uploaded source cannot be imported: {type(exc).__name__}: {exc}\n"
                f"{failed.details['traceback']}"
            ) from exc
        return entry_of(vars(module), Path(SOURCE_NAME), "the uploaded source")

    def _start(self, program: Inferlet, launch: m.GuestLaunch) -> None:
        limits = MailboxLimits(
            launch.mailbox_capacity, launch.mailbox_limit, launch.max_message_bytes
        )
        self._loop = GuestLoop()
        self._mailbox = GuestMailbox(self._calls.append, program.name, limits)
        models = [served_model(self._ask, model) for model in launch.models]
        self._port = GuestPort(self._calls.append, launch, models)
        host = ProgramHost(
            self._loop.as_loop,
            network=cast(Network, self._network),
            new_mailbox=lambda name: cast(Mailbox, self._mailbox),
            grace_s=launch.grace_s,
        )

        def connect(sink: ReplySink, loop: object) -> ProgramPort:
            assert isinstance(sink, Issuer)
            self._issuer = self._network.issuer = sink
            return self._port

        self._running = host.launch(program, launch.args, connect, launch.named)
        self._running.listen_log(self._log)
        self._running.add_done_callback(self._ended)

    def _log(self, level: str, text: str, fields: Mapping[str, Any]) -> None:
        question(self._ask, "log", level, text, dict(fields))

    def _take(self, event: m.GuestEvents) -> None:
        sink = self._issuer
        match event:
            case m.Replied():
                sink.on_reply(event.command, event.reply, event.last)
            case m.CommandFailed():
                sink.on_failure(event.command, event.error)
            case m.Message():
                self._mailbox.to_program.send(event.text)
            case m.Taken():
                self._mailbox.to_client.taken(event.count)
            case m.InputClosed():
                self._mailbox.to_program.close("the client has closed its side")
            case m.ClientGone():
                self._mailbox.to_client.close(event.error.message)
            case m.Fetched():
                self._network.fetched(event)
            case m.FetchFailed():
                self._network.failed(event.request, event.error)
            case m.ServiceAnswered():
                self._port.answered(event.number, event.value)
            case m.ServiceRefused():
                self._port.refused(event.number, event.error)
            case m.CancelAsked():
                self._running.cancel(event.reason)
            case m.Terminated():
                sink.on_terminated(event.error)
            case m.TimeCome():
                pass

    def _ended(self, running: RunningProgram) -> None:
        error = running.error
        for stream in self._streams:
            stream.finish()
        self._calls.append(
            m.Ended(
                str(running.state),  # type: ignore[arg-type]
                "null" if error is not None else json.dumps(_result(running)),
                None if error is None else error.record(),
                list(running.unobserved_failures),
                list(running.leaked_tasks),
            )
        )

    def _failed(self, error: QuireError) -> str:
        self._calls.append(m.Ended("failed", "null", error.record(), [], []))
        return self._answer(None)

    def _broken(self, error: Exception) -> str:
        """End the program: the runner itself has failed, or its calls cannot be encoded."""
        self._calls.clear()
        if isinstance(error, QuireError):
            return self._failed(error)
        return self._failed(program_failed(MODULE_NAME, SOURCE_NAME, error))

    def _turn(self) -> str:
        self._loop.turn()
        return self._answer(self._loop.next_timer_s())

    def _answer(self, wake_in_s: float | None) -> str:
        calls = list(self._calls)
        self._calls.clear()
        return _json(m.Turn(calls, wake_in_s))


def _code(source: str) -> CodeType:
    # without this module's future statements, so that the program's annotations are values
    return compile(source, SOURCE_NAME, "exec", dont_inherit=True)


def _result(running: RunningProgram) -> object:
    """The result of a finished program."""
    return running.outcome()


def _json(message: object) -> str:
    return msgspec.json.encode(message).decode()
