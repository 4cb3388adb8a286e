"""One process of an MCP server: JSON-RPC over its standard streams, one line per message.

Owns the process and the requests in flight. A process that exceeds a limit is ended, and every
request in flight fails with the reason; standard error goes to the log. Must not know who makes
requests, nor that another process may follow. Belongs to the loop that called ``start``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from quire.core.errors import InvalidArgument, ProgramError
from quire.core.mcp_config import McpServerConfig
from quire.programs.services import mcp_protocol as protocol

GRACE_S = 2.0
_SHOWN = 200
"""Characters that are logged of an invalid line, and of the last lines of standard error."""
_MAX_SHOWN_LINES = 20
"""Invalid lines of one process that are logged."""
_LINES_AT_ONCE = 64
"""Lines that are read before other tasks get a turn: a server may send without end."""
_NUM_LAST_LINES = 5
"""Lines of standard error that are repeated when the process ends by itself."""
_DEAF = "it did not read what it was sent"

_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
"""Variables of the node's environment that are passed on: the others may hold its secrets."""


class McpProcess:
    """Call ``start`` once, and ``close`` in any case. ``ended`` is set when the process is gone.

    ``grace_s``: the time from the end of its input to SIGTERM, and from there to SIGKILL.
    """

    def __init__(self, config: McpServerConfig, grace_s: float = GRACE_S) -> None:
        self._config = config
        self._grace_s = grace_s
        self._log = logging.getLogger(f"quire.mcp_server.{config.name}")
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writing = asyncio.Lock()
        self._verdict: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_invalid = 0
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._process: asyncio.subprocess.Process
        self._watch: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.initialized: dict[str, Any] = {}
        """The result of ``initialize``."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Start the process and negotiate the protocol.

        Raises:
            ProgramError: it cannot be started, ends, or does not speak a supported version of MCP.
        """
        config = self._config
        try:
            self._process = await asyncio.create_subprocess_exec(
                config.command,
                *config.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(config.env),
                cwd=config.directory,
                limit=config.max_message_bytes,
                start_new_session=True,  # Ctrl-C is for the node, which ends the group
            )
        except (OSError, ValueError) as exc:
            self._log.error("%s cannot be started: %s", config.command, exc)
            raise ProgramError(
                f"MCP server {config.name} cannot be started ({type(exc).__name__}); the node's "
                "log says more"
            ) from exc
        self._watch = asyncio.create_task(self._run(), name=f"MCP server {config.name}")
        result = await self.ask("initialize", dict(protocol.INITIALIZE))
        protocol.agreed(config.name, result)
        await self._write(protocol.encoded(protocol.INITIALIZED))
        self.initialized = result

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one request. When the wait is cancelled, the server is told to cancel the
        request.

        Raises:
            InvalidArgument: the request is too long.
            ProgramError: it was refused, not answered in time, or the process has ended.
        """
        name, limit_s = self._config.name, self._config.timeout_s
        number = next(self._numbers)
        line = protocol.encoded({"id": number, "method": method, "params": params})
        if len(line) > self._config.max_message_bytes:
            raise InvalidArgument(
                f"{method} for MCP server {name} has {len(line)} bytes, "
                f"{self._config.max_message_bytes} are allowed in one message: send less, or have "
                "the operator raise its max_message_bytes"
            )
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        written = False
        try:
            async with asyncio.timeout(limit_s):
                await self._write(line)
                written = True
                return protocol.result_of(name, method, await answer)
        except TimeoutError as exc:
            if not written:
                self._end(_DEAF)
            raise ProgramError(
                f"MCP server {name} has not answered {method} within {limit_s:g} s: try again, or "
                "have the operator raise its timeout_s"
            ) from exc
        finally:
            del self._waiting[number]
            if (written and not answer.done()) or answer.cancelled():
                self._give_up(number, method)
            elif answer.done():
                answer.exception()  # retrieved, also if writing has raised the same error before

    async def close(self) -> None:
        """End the process and every process that it has started. Returns when it is gone."""
        if self._watch is None:
            return  # never begun
        self._verdict = self._verdict or "it was ended, unused"
        stdin = self._process.stdin
        assert stdin is not None
        stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            done, _ = await asyncio.wait({self._watch}, timeout=self._grace_s)
            if done:
                break
            self._signal(number)
        await asyncio.wait({self._watch, *self._tasks})
        with suppress(ConnectionError):
            await stdin.wait_closed()

    # -- inside ------------------------------------------------------------------------------------

    def _give_up(self, number: int, method: str) -> None:
        """Tell the server that the request is cancelled. ``initialize`` must not be cancelled; a
        server that does not start is ended instead."""
        if method != "initialize" and not self.ended.is_set():
            params = {"requestId": number, "reason": "nobody waits for it any more"}
            self._soon({"method": "notifications/cancelled", "params": params})

    def _soon(self, message: Mapping[str, Any]) -> None:
        task = asyncio.create_task(self._tell(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, message: Mapping[str, Any]) -> None:
        """Send a message that has no answer; end a server that does not read it."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await self._write(protocol.encoded(message))
        except TimeoutError:
            self._end(_DEAF)
        except ProgramError:
            pass  # it has ended; waiting requests fail

    async def _write(self, line: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        async with self._writing:
            if self.ended.is_set() or self._verdict is not None:
                raise self._gone()
            try:
                await stdin.drain()  # first: a caller cancelled here has written nothing
                stdin.write(line + b"\n")
            except ConnectionError:
                await self.ended.wait()
                raise self._gone() from None

    async def _run(self) -> None:
        """Read answers and log until the process is gone; note its exit status."""
        log = asyncio.create_task(self._read_log(), name=f"log of MCP server {self._config.name}")
        try:
            await self._read_answers()
        finally:
            self._signal(signal.SIGTERM)  # a server that has closed its output is useless
            killer = asyncio.get_running_loop().call_later(
                self._grace_s, self._signal, signal.SIGKILL
            )
            code = await self._process.wait()
            killer.cancel()
            self._signal(signal.SIGKILL)  # processes that it has started and left behind
            await log
            if self._verdict is None:
                self._verdict = _how(code)
                shown = "".join(f"\n  {line}" for line in self._last_lines)
                self._log.warning("ended: %s%s", self._verdict, shown)
            else:
                self._log.info("ended: %s", self._verdict)
            self.ended.set()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(self._gone())

    async def _read_answers(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for number in count(1):
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)  # lines that are there already are read without a wait
            try:
                line = await stdout.readline()
            except ValueError:
                self._end(
                    f"it sent a message of more than {self._config.max_message_bytes} bytes, "
                    "the limit"
                )
                return
            if not line:
                return
            if line.strip():
                await self._take(line)

    async def _take(self, line: bytes) -> None:
        try:
            message = protocol.parsed(self._config.name, line)
        except ProgramError:
            self._note_invalid(line)
            return
        number = message.get("id")
        if "method" in message:
            if number is not None:
                await self._tell(
                    protocol.reply_to(message)
                )  # one at a time: a client that sends requests must read the answers
            return
        answer = self._waiting.get(number) if isinstance(number, int) else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _note_invalid(self, line: bytes) -> None:
        self._num_invalid += 1
        if self._num_invalid <= _MAX_SHOWN_LINES:
            self._log.warning("no message: %s", _shown(line[:_SHOWN]))
        elif self._num_invalid == _MAX_SHOWN_LINES + 1:
            self._log.warning("further lines that are no messages are not shown")

    async def _read_log(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        for number in count(1):
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                line = await stderr.readline()
            except ValueError:  # longer than the limit; asyncio has dropped what it had read of it
                line = b"(a line too long to keep)"
            if not line:
                return
            text = _shown(line)
            self._log.info("%s", text)
            self._last_lines.append(text[:_SHOWN])

    def _end(self, verdict: str) -> None:
        self._verdict = self._verdict or verdict
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Signal its whole process group, also after the process itself has ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _gone(self) -> ProgramError:
        return ProgramError(
            f"MCP server {self._config.name} has ended ({self._verdict}); the next call starts it "
            "again"
        )


def _shown(line: bytes) -> str:
    """``line`` for the log: a server must not move the cursor of the terminal that shows it."""
    text = line.decode("utf-8", "replace").rstrip()
    if text.isprintable():
        return text
    visible = (
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode()
        for one in text
    )
    return "".join(visible)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, **own}


def _how(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"it exited with {code}"
