"""A child process of the node (engine, encoder, sandbox): start, heartbeats, log, end.

Owns the process and its three pipes. Standard input carries the launch order, then heartbeats; its
end means to the child that the node is gone. Standard output answers the heartbeats. Standard error
goes to the log under the process's name, with the level of each record. Must not know what the
process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from quire.core.errors import EngineLost
from quire.node.transports.messages import Pulse

ENGINE_COMMAND = (
    sys.executable,
    "-P",  # files in the working directory must not shadow a module
    "-m",
    "quire.node.engines.engine_process",
)
ENCODER_COMMAND = (*ENGINE_COMMAND[:-1], "quire.node.encoders.encoder_process")

_LEVELS = logging.getLevelNamesMapping()
_KEPT_STDERR_LINES = 20
_MAX_LINE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LifeLimits:
    """``frozen_after_s``: a process that has not answered heartbeats for this time is frozen;
    ``loading_s`` applies while it loads, as libraries that are read or compiled may hold the
    interpreter for long. ``stuck_after_s``: the longest time of one batch until enough of the
    process's own batches have been measured; then these decide, but it is at least
    ``least_stuck_s``. ``grace_s``: the time from SIGTERM to SIGKILL. ``last_words_s``: the time
    from the end of a process to the end of its log."""

    heartbeat_s: float = 2.0
    frozen_after_s: float = 20.0
    loading_s: float = 60.0
    stuck_after_s: float = 600.0
    least_stuck_s: float = 120.0
    grace_s: float = 5.0
    last_words_s: float = 2.0


class NodeChild:
    """One process. ``on_exit`` is called once, with the reason, unless ``close`` came first.
    ``kind`` names the process in the log.

    Every method belongs to the loop that called ``spawn``.
    """

    def __init__(
        self,
        name: str,
        on_exit: Callable[[str], None],
        limits: LifeLimits,
        command: Sequence[str] = ENGINE_COMMAND,
        kind: str = "engine",
    ) -> None:
        self._name = name
        self._kind = kind
        self._command = command
        self._on_exit = on_exit
        self._limits = limits
        self._log = logging.getLogger(f"quire.{kind}_process.{name}")
        self._stderr: deque[str] = deque(maxlen=_KEPT_STDERR_LINES)
        self._level = logging.INFO
        self._verdict: str | None = None
        self._closing = False
        self._asked_s: float | None = None
        self.frozen_after_s = limits.loading_s
        """The owner sets another value once the process has loaded."""
        self.stuck_after_s = limits.stuck_after_s
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def silent_s(self) -> float:
        """Seconds since the unanswered heartbeat; 0 if there is none. For any thread."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    async def spawn(self, order: msgspec.Struct, num_threads: int | None = None) -> None:
        """Start the process with its launch order; ``num_threads`` limits its thread pools.

        Raises:
            EngineLost: the system cannot start a process now; a retry may succeed.
        """
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        try:
            transport, protocol = await loop.subprocess_exec(
                lambda: _GroupProtocol(_MAX_LINE_BYTES, loop, self._ended),
                *self._command,
                env=_environment(num_threads),
                start_new_session=True,  # Ctrl-C is for the node, which then drains its engines
            )
        except OSError as exc:
            raise EngineLost(
                f"no process can be started for {self._kind} {self._name}: {exc}; look at the "
                "machine's memory and at its limits of processes and files"
            ) from exc
        self._transport = transport
        self._process = asyncio.subprocess.Process(transport, protocol, loop)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._pulse = asyncio.create_task(self._beat(), name=f"heartbeat {self._name}")
        self._watch = asyncio.create_task(self._wait(), name=f"watch {self._name}")

    async def close(self, *, has_told_why: bool = False) -> None:
        """End the process: SIGTERM, then SIGKILL after the grace. Return when it is gone.

        ``has_told_why``: it ends by an error of its own, which its owner reports; a SIGKILL is then
        logged at DEBUG only.
        """
        self._closing = True
        self._pulse.cancel()
        if self._process.returncode is None:
            self._process.terminate()
        done, _ = await asyncio.wait({self._watch}, timeout=self._limits.grace_s)
        if not done:
            level = logging.DEBUG if has_told_why else logging.WARNING
            self._kill(f"it did not end within {self._limits.grace_s:g} s of SIGTERM", level)
        await asyncio.wait({self._watch})  # a caller that is cancelled here may close again

    async def _wait(self) -> None:
        """Wait for the end of the process and report at once how it ended; then wait for the end
        of its log."""
        reading = asyncio.create_task(self._read_log(), name=f"log {self._name}")
        await self._ended
        self._pulse.cancel()
        reason = None
        if not self._closing:
            reason = self._reason(cast(int, self._transport.get_returncode()))
            self._on_exit(reason)
        # processes of groups of their own may hold the log open; they are not waited for
        await asyncio.wait({reading}, timeout=self._limits.last_words_s)
        reading.cancel()
        await asyncio.wait({self._pulse, reading})
        self._transport.close()  # its pipes, which processes that it has started may still hold
        await asyncio.sleep(0)  # they are closed in the loop's next turn
        if reason is not None:
            words = [f"{reason}; its last words:", *self._stderr] if self._stderr else [reason]
            self._log.error("%s", "\n".join(words))

    async def _read_log(self) -> None:
        """Read standard error to its end."""
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # longer than the limit; asyncio has dropped what it had read of it
                self._stderr.append("(a line too long to keep)")
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._stderr.append(text)
            self._pass_on(text)

    def _pass_on(self, line: str) -> None:
        """Log a line. A line that does not start a record belongs to the record before it, such as
        the lines of a traceback."""
        level, _, rest = line.partition(" ")
        if level in _LEVELS:
            self._level, line = _LEVELS[level], rest
        self._log.log(self._level, "%s", line)

    async def _beat(self) -> None:
        """Send heartbeats; kill a process that does not answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        while True:
            await asyncio.sleep(self._limits.heartbeat_s)
            self._asked_s = time.monotonic()
            stdin.write(b"\n")
            line = await self._answer(stdout)
            if line is None:
                self._kill(f"it answered no heartbeat for {self.frozen_after_s:g} s")
                return
            self._asked_s = None
            if not line:
                return  # it is exiting; _wait says why
            if (fault := self._fault(line)) is not None:
                self._kill(fault)
                return

    async def _answer(self, stdout: asyncio.StreamReader) -> bytes | None:
        """The answer to a heartbeat; None: none has come for too long. Time in which this loop
        itself stood still (the whole node was stopped, or the machine) does not count: each wait
        counts as one step, however late it ends."""
        reading = asyncio.ensure_future(stdout.readline())
        step_s, waited_s = min(self._limits.heartbeat_s, self.frozen_after_s), 0.0
        try:
            while waited_s < self.frozen_after_s:
                done, _ = await asyncio.wait({reading}, timeout=step_s)
                if done:
                    return reading.result()
                waited_s += step_s
        finally:
            reading.cancel()
        return None

    def _fault(self, line: bytes) -> str | None:
        """What is wrong with the process according to its answer, or ``None``."""
        try:
            busy_s = msgspec.json.decode(line, type=Pulse).busy_s
        except msgspec.DecodeError:
            return f"it answered a heartbeat with {line[:80]!r}"
        if busy_s > self.stuck_after_s:
            return f"one batch has been running for {busy_s:.0f} s"
        return None

    def _kill(self, verdict: str, level: int = logging.ERROR) -> None:
        self._verdict = verdict
        killed = (self._kind, self._name, self.pid, verdict)
        self._log.log(level, "%s %s (pid %s) is killed: %s", *killed)
        if self._process.returncode is None:
            self._process.kill()

    def _reason(self, code: int) -> str:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return self._verdict or f"its process (pid {self.pid}) {how}"


class _GroupProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    """The protocol of a process that leads a group; at its end, kills the rest of the group.

    The processes that it has started (a compiler) hold its pipes, and have no work without it.
    ``ended`` is set when the process itself has ended.
    """

    def __init__(
        self, limit: int, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]
    ) -> None:
        super().__init__(limit, loop)
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # uvloop's transports have asyncio's methods, but not its classes
        self._group = cast(asyncio.SubprocessTransport, transport).get_pid()

    def process_exited(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # usually the group is empty
            os.killpg(self._group, signal.SIGKILL)
        super().process_exited()
        if not self._ended.done():
            self._ended.set_result(None)


def _environment(num_threads: int | None) -> dict[str, str]:
    """The node's environment, with the size of thread pools, which read it at their creation."""
    environment = dict(os.environ)
    if num_threads is not None:
        environment["OMP_NUM_THREADS"] = str(num_threads)
    return environment
