"""The native runtime: trusted Python programs on an event loop in a separate thread.

Owns the thread, its loop, the HTTP client that its programs share, and the watchdog. User code runs
only on this thread; a program that blocks the loop delays other native programs, never control.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import httpx

from quire.core.errors import Draining
from quire.core.event_loops import new_event_loop
from quire.core.interfaces import Clock
from quire.core.system_clock import SystemClock
from quire.programs.arguments import NO_NAMES
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.host import ProgramHost
from quire.programs.runtime.running import Connect, RunningProgram
from quire.programs.runtime.watchdog import BlockedLoop, Watchdog
from quire.programs.services.mailbox import MailboxLimits
from quire.programs.services.network import Network, NetworkPolicy, new_client

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """``blocked_after_s``: a loop that does not turn for that long is reported.

    ``grace_s``: how long a cancelled program may clean up.
    """

    blocked_after_s: float = 1.0
    grace_s: float = 5.0
    mailbox: MailboxLimits = MailboxLimits()  # noqa: RUF009 - frozen
    network: NetworkPolicy = NetworkPolicy()  # noqa: RUF009 - frozen


class NativeRuntime:
    """``Runtime`` of trusted programs. ``launch``, ``programs`` and ``close`` may be called from
    any thread.

    ``on_blocked`` is called on the watchdog's thread. ``http_client`` is called on the loop thread,
    where its client is closed, too.
    """

    def __init__(
        self,
        config: NativeConfig | None = None,
        *,
        on_blocked: Callable[[BlockedLoop], None] | None = None,
        http_client: Callable[[], httpx.AsyncClient] = new_client,
        clock: Clock | None = None,
    ) -> None:
        self._config = config or NativeConfig()
        self._on_blocked = on_blocked or _ignore
        self._http_client = http_client
        self._clock = clock or SystemClock()
        self._thread: threading.Thread | None = None
        self._host: ProgramHost | None = None
        self._stop: asyncio.Event | None = None
        self._watchdog: Watchdog | None = None

    def start(self) -> None:
        """Start the loop thread; return when it is ready."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run_thread, args=(ready,), name="quire-programs", daemon=True
        )
        self._thread.start()
        ready.result()

    def launch(
        self,
        inferlet: Inferlet,
        args: Sequence[str],
        connect: Connect,
        named: Mapping[str, str] = NO_NAMES,
    ) -> RunningProgram:
        """Start a program and return its handle at once; see ``ProgramHost.launch``."""
        if self._host is None:
            raise Draining("this runtime is not running: start() it first")
        return self._host.launch(inferlet, args, connect, named)

    def programs(self) -> list[RunningProgram]:
        return [] if self._host is None else self._host.programs()

    @property
    def is_blocked(self) -> bool:
        """Whether the watchdog has found that a program blocks the loop, and it still does."""
        return self._watchdog is not None and self._watchdog.is_blocked

    def close(self) -> None:
        """Cancel every program, then wait until all programs and the thread have ended. Idempotent.

        Blocks for at most twice the grace time, unless a program blocks the loop.
        """
        thread, self._thread = self._thread, None
        host, stop = self._host, self._stop
        if thread is None or host is None or stop is None:
            return
        host.loop.call_soon_threadsafe(stop.set)
        thread.join()
        self._host = None

    def _run_thread(self, ready: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(ready))
        except Exception as exc:
            logger.exception("the program loop has failed")
            if not ready.done():
                ready.set_exception(exc)

    async def _serve(self, ready: Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self._http_client() as client:
            host = ProgramHost(
                loop,
                network=Network(client, self._config.network),
                mailbox_limits=self._config.mailbox,
                grace_s=self._config.grace_s,
            )
            watchdog = Watchdog(
                post=loop.call_soon_threadsafe,
                thread_id=threading.get_ident(),
                current_program=host.current_program,
                on_blocked=self._on_blocked,
                clock=self._clock,
                threshold_s=self._config.blocked_after_s,
            )
            watchdog.start()
            self._watchdog = watchdog
            loop.set_exception_handler(host.report_uncaught)
            self._host = host
            ready.set_result(None)
            try:
                await self._stop.wait()
                await host.shutdown()
            finally:
                await asyncio.to_thread(watchdog.stop)


def _ignore(_: BlockedLoop) -> None:
    """Do nothing, as the default: the watchdog logs anyway."""
