"""Tries a strategy in a process of its own before the router runs it.

Owns the process and its limits. The router's own trial runs on a thread, which cannot be stopped:
code that never ends would take processor time until the router does, and code that takes memory
without bound would end it. Here the kernel ends such code. Must not know what makes a strategy
acceptable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass, field

import msgspec

from quire.cluster.routing.strategy import LOAD_TIMEOUT_S, StrategySource
from quire.cluster.routing.trial_process import READY, Limits, TrialOutcome, TrialRequest
from quire.core.errors import InvalidArgument

_START_TIMEOUT_S = 60.0
"""Time to start Python and load Quire's modules, on a machine with much other work."""
_MAX_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TrialApart:
    """Tries strategies in a process with ``limits``. ``timeout_s``: for loading and the trial,
    waiting included."""

    limits: Limits = field(default_factory=Limits)
    timeout_s: float = LOAD_TIMEOUT_S

    async def __call__(self, source: StrategySource) -> None:
        """Return if ``source`` has passed. Shipped strategies are not tried here.

        Raises:
            InvalidArgument: it is refused, or exceeds a limit; the message says which.
        """
        if source.text is None:
            return
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _START, *sys.path,
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True,
            limit=_MAX_ANSWER_BYTES,
        )  # fmt: skip
        try:
            answer = await self._asked(process, source)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has started goes with it
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if answer is None:
            raise self._ended(source, process.returncode)
        if answer.refusal is not None:
            raise InvalidArgument(answer.refusal)

    async def _asked(self, process: Process, source: StrategySource) -> TrialOutcome | None:
        """Return the outcome of the trial; None if the process has ended without one."""
        assert process.stdin is not None
        assert process.stdout is not None
        path = None if source.path is None else str(source.path)
        text, options = source.text or "", dict(source.options)
        asked = TrialRequest(source.name, text, path, options, self.limits)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                with contextlib.suppress(ConnectionError):  # then it does not answer either
                    process.stdin.write(msgspec.json.encode(asked) + b"\n")
                    await process.stdin.drain()
                if await process.stdout.readline() != READY:
                    return None
            async with asyncio.timeout(self.timeout_s):
                line = await process.stdout.readline()
        except TimeoutError as exc:
            raise InvalidArgument(
                f"strategy {source.label} was not ready after {self.timeout_s:g} s: neither "
                "loading it nor its trial, in which engines answer at once, may block or wait"
            ) from exc
        try:
            return msgspec.json.decode(line, type=TrialOutcome)
        except msgspec.MsgspecError:  # nothing, or what the strategy itself has written
            return None

    def _ended(self, source: StrategySource, code: int | None) -> InvalidArgument:
        if code == -signal.SIGPROF:
            why = (
                f"has used {self.limits.processor_s:g} s of processor time: it may not compute "
                "for so long, perhaps it never ends"
            )
        else:
            why = f"has ended the process in which it was tried (exit status {code})"
        return InvalidArgument(f"strategy {source.label} is refused: loading or trying it {why}")


_START = """
import sys
sys.path[:] = sys.argv[1:]
from quire.cluster.routing.trial_process import main
main()
"""
"""The process finds modules where the router finds them."""
