"""The node's connection to one sandbox process: starts it, exchanges messages, detects its loss.

Owns the process and the numbers of its guests. The number identifies a guest on this connection: no
message from the process can name a program. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from quire.core.config import EngineConfig, SandboxConfig
from quire.core.errors import (
    Draining,
    EngineLost,
    ErrorRecord,
    ProgramTerminated,
    QuireError,
    from_record,
)
from quire.core.interfaces import Clock
from quire.node.sandbox import messages as s
from quire.node.sandbox.changed_sources import because_of_change
from quire.node.sandbox.losses import Losses
from quire.node.sandbox.outbox import GuestOutbox
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import SandboxHealth, SandboxState, silence
from quire.node.transports.child import LifeLimits
from quire.node.transports.life import ProcessLife, ProcessMessages
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.messages import (
    Fetch,
    Fetched,
    FetchFailed,
    GuestEvents,
    GuestModel,
    Inspected,
    Manifest,
)
from quire.programs.sandbox.program import GuestProgram
from quire.programs.sandbox.wasm.engine import problem_of_wasmtime

logger = logging.getLogger(__name__)

SANDBOX_COMMAND = (sys.executable, "-P", "-m", "quire.node.sandbox.sandbox_process")
_KEPT_CODE = 128
"""Programs whose code the process keeps, so that a launch need not send it."""
_KEPT_STOPPED = 256
_NUM_STARTS = 2
"""Starts that a program waits for, if the process is lost while it starts: no program was in it."""


def cache_directory(config: SandboxConfig) -> Path:
    return config.cache_dir or Path.home() / ".cache" / "quire"


class GuestPeer(Protocol):
    """The link's interface to one guest."""

    def on_report(self, report: s.GuestReport) -> None: ...

    def on_fetched(self, event: Fetched | FetchFailed) -> None: ...

    def on_lost(self, error: ErrorRecord) -> None:
        """The guest is lost with its process, or cannot be told what it needs."""
        ...


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """``command`` starts the process; it must behave as ``sandbox_process`` does."""

    config: SandboxConfig
    engines: tuple[EngineConfig, ...]
    command: Sequence[str] = SANDBOX_COMMAND
    limits: LifeLimits = LifeLimits(frozen_after_s=60.0)  # noqa: RUF009 - frozen
    on_progress: OnProgress | None = None


class SandboxLink:
    """One process after another: ``ready`` starts one if there is none. ``name`` is for the log."""

    def __init__(self, name: str, settings: LinkSettings, clock: Clock) -> None:
        self.name = name
        self._settings = settings
        self._clock = clock
        self._numbers = itertools.count(1)
        self._guests: dict[int, GuestPeer] = {}
        self._stopped: OrderedDict[int, GuestPeer] = OrderedDict()
        """Ended guests whose resource usage is still expected; it may never arrive, so the oldest
        are dropped."""
        self._inspections: dict[int, asyncio.Future[Inspected]] = {}
        self._outbox = GuestOutbox(self._say, self._give_up)
        self._kept = _Kept()
        self._life: ProcessLife[s.FromSandbox, s.SandboxReady] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._stage = ""
        """What the process that starts is doing."""
        self._losses = Losses()
        self._problem = problem_of_wasmtime()
        self._made_s = time.time()
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._life is None else self._life.pid

    def health(self) -> SandboxHealth:
        """The health of the process. For any thread."""
        life, detail = self._life, ""
        if self._starting is not None:
            state, detail = SandboxState.STARTING, self._stage
        elif life is not None:
            state, detail = SandboxState.READY, silence(life.silent_s()) or ""
        elif (problem := self._losses.problem(self._clock.now_s())) is not None:
            state, detail = SandboxState.PAUSED, problem
        elif self._problem is not None:
            state, detail = SandboxState.UNAVAILABLE, self._problem
        else:
            state = SandboxState.IDLE
        return SandboxHealth(state, detail, self._losses.count)

    async def ready(self) -> None:
        """Return when the process accepts guests. One that is lost while it starts (the system
        needed its memory) is started once more.

        Raises:
            CapacityError: the process was lost repeatedly, and is not started for a while.
            QuireError: it cannot be started.
        """
        num_lost = 0
        while not self.is_ready:  # it may be lost right after its start
            if self._closed:
                raise _closing()
            if self._starting is None:
                self._losses.check(self._clock.now_s())
                self._starting = asyncio.create_task(
                    self._start(), name=f"start sandbox {self.name}"
                )
            starting = self._starting
            try:
                await asyncio.shield(starting)
            except EngineLost:
                num_lost += 1
                if num_lost == _NUM_STARTS:
                    raise
            except asyncio.CancelledError:
                if self._closed and starting.cancelled():  # the start, not this waiting task
                    raise _closing() from None
                raise

    async def _start(self) -> None:
        self._kept = _Kept()
        settings, config = self._settings, self._settings.config
        life = self._life = ProcessLife(
            "sandbox",
            self.name,
            settings.command,
            ProcessMessages(s.node_codec(), s.sandbox_codec(), s.SandboxReady),
            self._on_message,
            self._on_lost,
            limits=settings.limits,
            on_progress=self._on_progress,
        )
        try:
            await life.start(
                s.SandboxOrder,
                num_threads=1,
                cache_dir=str(cache_directory(config)),
                num_warm=config.num_warm,
                engines=settings.engines,
            )
        except BaseException as exc:
            self._life = None
            await life.close()
            if isinstance(exc, QuireError) and (why := because_of_change(self._made_s)):
                said = msgspec.structs.replace(exc.record(), message=exc.message + why)
                raise from_record(said) from exc
            raise
        finally:
            self._starting = None
            self._stage = ""

    def _on_progress(self, stage: str, fraction: float) -> None:
        self._stage = stage
        if self._settings.on_progress is not None:
            self._settings.on_progress(stage, fraction)

    # -- guests ------------------------------------------------------------------------------------

    def add(self, peer: GuestPeer) -> int:
        """A number for a new guest; the guest is counted from now on."""
        number = next(self._numbers)
        self._guests[number] = peer
        return number

    def forget(self, guest: int) -> None:
        self._guests.pop(guest, None)
        self._outbox.forget(guest)

    @property
    def is_ready(self) -> bool:
        """Whether guests may be started without waiting."""
        return self._life is not None and self._starting is None

    def start_guest(
        self, start: s.Start, program: GuestProgram, models: tuple[GuestModel, ...]
    ) -> None:
        """Start a guest; the process must be ``ready``. The message is sent with all starts of this
        turn of the loop."""
        missing = self._kept.missing(program, models)
        if missing is not None:
            self._outbox.flush()
            self._say(missing)
        self._outbox.start(start)

    def tell(self, guest: int, event: GuestEvents) -> None:
        """Send ``event`` to the guest, together with its other events of this turn of the loop."""
        if guest in self._guests:
            self._outbox.tell(guest, event)

    def order_fetch(self, guest: int, call: Fetch) -> None:
        """Have the process make an HTTP request of the guest; ``GuestPeer.on_fetched`` follows."""
        self._say(s.OrderFetch(guest=guest, call=call))

    def stop_guest(self, guest: int, error: ErrorRecord) -> None:
        """End the guest at once; only its resource usage is still received."""
        self._outbox.flush()
        peer = self._guests.get(guest)
        self.forget(guest)
        if peer is not None:
            self._stopped[guest] = peer
            if len(self._stopped) > _KEPT_STOPPED:
                self._stopped.popitem(last=False)
        self._say(s.Stop(guest=guest, error=error))

    async def inspect(self, code: bytes, limits: GuestLimits) -> Manifest:
        """The manifest of ``code``.

        Raises:
            QuireError: it is not a program, or the process cannot be started.
        """
        await self.ready()
        number = next(self._numbers)
        future: asyncio.Future[Inspected] = asyncio.get_running_loop().create_future()
        self._inspections[number] = future
        try:
            self._say(s.Inspect(number=number, code=code, limits=limits))
            inspected = await future
        finally:
            self._inspections.pop(number, None)
        if inspected.error is not None:
            raise from_record(inspected.error)
        if inspected.manifest is None:
            raise ProgramTerminated(
                "the sandbox process answered without a manifest: it is broken, and the node's log "
                "has what it said"
            )
        return inspected.manifest

    async def close(self) -> None:
        """End the process. Its guests must have ended. Idempotent."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if self._life is not None:
            life, self._life = self._life, None
            await life.close()

    # -- inside ------------------------------------------------------------------------------------

    def _say(self, message: s.ToSandbox) -> None:
        """Send a message. It is dropped if the process is lost; its guests are notified of the
        loss."""
        if self._life is not None:
            self._life.say(message)

    def _give_up(self, guest: int, why: str) -> None:
        """End a guest that cannot be told what it needs."""
        peer = self._guests.get(guest)
        self.forget(guest)
        error = ProgramTerminated(f"the program was ended: {why}").record()
        self._say(s.Stop(guest=guest, error=error))
        if peer is not None:
            peer.on_lost(error)

    def _on_message(self, message: s.FromSandbox) -> None:
        match message:
            case s.Reports():
                for report in message.reports:
                    self._on_report(report)
            case s.FetchDone():
                if (peer := self._guests.get(message.guest)) is not None:
                    peer.on_fetched(message.event)
            case s.Inspection():
                future = self._inspections.get(message.number)
                if future is not None and not future.done():
                    future.set_result(message.inspected)
            case _:
                assert self._life is not None
                raise self._life.out_of_turn(message)

    def _on_report(self, report: s.GuestReport) -> None:
        peer = self._guests.get(report.guest)
        if peer is None and report.spent is not None:
            peer = self._stopped.pop(report.guest, None)
        if peer is not None:
            peer.on_report(report)

    def _on_lost(self, reason: str) -> None:
        """Notify the guests that they are lost with the process. The next launch starts another
        process."""
        life, self._life = self._life, None
        self._losses.note(self._clock.now_s(), reason)
        why = because_of_change(self._made_s)
        error = ProgramTerminated(
            f"the sandbox process that ran this program was lost ({reason}){why}; launch it again"
        )
        guests, self._guests = self._guests, {}
        self._stopped.clear()
        self._outbox.clear()
        for peer in guests.values():
            peer.on_lost(error.record())
        for future in self._inspections.values():
            if not future.done():
                future.set_exception(error)
        if life is not None:
            self._ending = asyncio.create_task(life.close(), name=f"end sandbox {self.name}")


def _closing() -> Draining:
    return Draining("the sandbox is closing and starts no further program")


class _Kept:
    """The data that the current process keeps: the code of programs, and the models."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, None] = OrderedDict()
        self._models: tuple[GuestModel, ...] | None = None

    def missing(self, program: GuestProgram, models: tuple[GuestModel, ...]) -> s.Keep | None:
        """The message that must precede a start of ``program``, or ``None``; it is recorded as
        sent."""
        code, forget = {}, []
        if program.digest in self._digests:
            self._digests.move_to_end(program.digest)
        else:
            self._digests[program.digest] = None
            code[program.digest] = program.code
            if len(self._digests) > _KEPT_CODE:
                forget.append(self._digests.popitem(last=False)[0])
        others = None if models is self._models or models == self._models else models
        self._models = models
        if not code and others is None:
            return None
        return s.Keep(code=code, models=others, forget=forget)
