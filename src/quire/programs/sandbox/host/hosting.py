"""The guests of one runtime process: turns, timers, requests, limits.

One loop, no thread per guest. A guest with events gets a turn: one call into it with all events,
which returns a list of calls. Between two turns the loop handles everything else. Owns the guests'
life from launch to end; an error of a guest ends that guest alone, with a message that names the
cause. Must not know who is on the other side of ``Report``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from quire.core.calls import AskService, DropAnswer, Issue
from quire.core.errors import (
    ErrorRecord,
    InvalidArgument,
    ProgramTerminated,
    QuireError,
    QuotaExceeded,
)
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers, GuestTools
from quire.programs.sandbox.host.family_cpu import FamilyCpus
from quire.programs.sandbox.host.guest_http import GuestHttp
from quire.programs.sandbox.host.hosted import FetchEnded, Guest, GuestIo, GuestRunner
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.wasm.engine import GuestTrapped
from quire.programs.services.network import Network

logger = logging.getLogger(__name__)

_CALLS = msgspec.msgpack.Encoder()
ROUND_S = 0.003
"""After this time the loop sends the calls of guests, and handles sockets and timers."""
_OTHERS_S = 0.0005
"""The part of a round that is reserved for guests that have started, however many are starting."""


class Report(Protocol):
    """Receives the calls of the host's guests. Called within a turn; must not block."""

    def calls(self, guest: int, calls: msgspec.Raw) -> None:
        """A list of ``GuestCalls``, already encoded as msgpack."""
        ...

    def log(self, guest: int, level: str, text: str, fields: Mapping[str, Any]) -> None: ...

    def spent(self, guest: int, cpu_ns: int, memory_bytes: int | None) -> None:
        """The resources that an ending guest has used; its end is reported after this."""
        ...

    def round_ended(self) -> None:
        """The round is over: send what was collected."""
        ...


class GuestHost:
    """Every method belongs to ``loop``. ``clock``: monotonic seconds, for the call rate;
    ``on_start`` and ``on_end`` are called after the start and the end of each guest."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
        on_start: Callable[[], object] | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._loop = loop
        self._report = report
        self._clock = clock
        self._on_start = on_start
        self._on_end = on_end
        self._guests: dict[int, Guest] = {}
        self._families = FamilyCpus()
        self._beginning: deque[Guest] = deque()
        self._ready: deque[Guest] = deque()
        self._round_scheduled = False

    def __len__(self) -> int:
        return len(self._guests)

    def start(
        self,
        number: int,
        name: str,
        make: Callable[[], GuestRunner],
        launch: m.GuestLaunch,
        *,
        limits: GuestLimits,
        network: Callable[[], Network],
        models: Mapping[str, GuestTools],
        family: tuple[int, int] | None = None,
        is_recorded: bool = False,
    ) -> None:
        """Schedule a program's first turn, after those of guests that were started earlier.
        Starting guests take precedence over running ones, which keep a part of each round. ``make``
        is called at that time and may raise ``GuestTrapped``. ``family``: its number, and the
        processor time in milliseconds that all guests with this number share. ``is_recorded``: its
        HTTP requests are calls like others, and are made when ``fetch`` orders them."""
        guest = Guest(number, name, lambda: (make(), launch), limits, network, self._clock())
        guest.answers = Answers(models, partial(self._log, guest))
        if family is not None:
            guest.join(family[0], self._families.enter(*family))
        guest.is_recorded = is_recorded
        self._guests[number] = guest
        guest.scheduled = True
        self._beginning.append(guest)
        self._schedule_round()
        if self._on_start is not None:
            self._on_start()

    def tell(self, number: int, events: Sequence[m.GuestEvents]) -> None:
        """Queue events for a guest; ignored if it has ended."""
        guest = self._guests.get(number)
        if guest is None:
            return
        guest.inbox += events
        self._schedule(guest)

    def refuse(self, number: int, error: ErrorRecord) -> None:
        """Report the end of a guest that cannot be started."""
        ended = m.Ended("terminated", "null", error, [], [])
        self._report.calls(number, _encoded([ended]))
        self._schedule_round()

    def stop(self, number: int, error: ErrorRecord) -> None:
        """End a guest from outside."""
        guest = self._guests.get(number)
        if guest is not None:
            self._end(guest, error)

    async def close(self) -> None:
        """Drop every guest without reporting."""
        guests = list(self._guests.values())
        tasks = [task for guest in guests for task in guest.requests.values()]
        streams = [guest.io.http for guest in guests if guest.io is not None]
        for guest in guests:
            self._release(guest)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.closed() for one in streams), return_exceptions=True)

    # -- turns -------------------------------------------------------------------------------------

    def _schedule(self, guest: Guest) -> None:
        if not guest.scheduled:
            guest.scheduled = True
            self._ready.append(guest)
            self._schedule_round()

    def _schedule_round(self) -> None:
        if not self._round_scheduled:
            self._round_scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._round_scheduled = False
        ends_s = self._clock() + ROUND_S
        self._give_turns(self._beginning, ends_s)
        self._give_turns(self._ready, max(ends_s, self._clock() + _OTHERS_S))
        self._report.round_ended()
        if self._beginning or self._ready:
            self._schedule_round()

    def _give_turns(self, guests: deque[Guest], until_s: float) -> None:
        """Give a turn to each guest that waits now, until ``until_s``."""
        for _ in range(len(guests)):
            guest = guests.popleft()
            guest.scheduled = False
            if not guest.ended:
                self._give_turn(guest)
            if self._clock() > until_s:
                break

    def _give_turn(self, guest: Guest) -> None:
        runner = guest.runner
        if runner is None:
            self._turn(guest, lambda limit_s: self._begin(guest, limit_s))
            if guest.inbox and not guest.ended:
                self._schedule(guest)
            return
        events, guest.inbox = guest.inbox, []
        self._turn(guest, lambda limit_s: runner.wake(events, limit_s))

    def _begin(self, guest: Guest, limit_s: float) -> m.Turn:
        runner, launch = guest.start()
        guest.runner = runner
        runner.attach(guest.answers)
        return runner.begin(launch, limit_s)

    def _turn(self, guest: Guest, call: Callable[[float], m.Turn]) -> None:
        """Call into the guest once; an error of the call or of its answer ends the guest."""
        try:
            limit_s = guest.turn_s
            if limit_s <= 0:
                raise _out_of_time(guest)
            turn = call(limit_s)
            self._check_rate(guest, turn.calls)
            self._carry_out(guest, turn)
        except GuestTrapped as exc:
            guest.note_cpu()
            self._end(guest, _trapped(guest, exc).record())
        except QuireError as exc:
            self._end(guest, exc.record())
        # an error of the host, triggered by a guest: the other guests continue
        except Exception as exc:
            logger.exception("program %r cannot be continued", guest.name)
            self._end(guest, _not_carried_on(guest, exc).record())
        finally:
            guest.note_cpu()

    def _check_rate(self, guest: Guest, calls: Sequence[m.GuestCalls]) -> None:
        num_calls = guest.answers.take_count()
        for call in calls:
            num_calls += len(call.commands) if isinstance(call, Issue) else 1
        if not guest.rate.take(num_calls, self._clock()):
            raise QuotaExceeded(
                f"program {guest.name!r} made more than {guest.limits.calls_per_s} calls within a "
                "second: await between calls, or ask for a larger quota"
            )

    def _carry_out(self, guest: Guest, turn: m.Turn) -> None:
        outward: list[m.GuestCalls] = []
        ended = False
        for call in turn.calls:
            if isinstance(call, m.Fetch) and not guest.is_recorded:
                self._fetch(guest, call, partial(self._answer, guest))
            elif isinstance(call, AskService) and call.name in GuestHttp.operations:
                self._io_of(guest).start(call)
            elif isinstance(call, DropAnswer) and guest.io and guest.io.drop(call.number):
                pass
            else:
                outward.append(call)
                ended = ended or isinstance(call, m.Ended)
        if ended:
            self._report_spent(guest)
        try:
            if outward:
                self._report.calls(guest.number, _encoded(outward))
        except OverflowError as exc:  # JSON can have numbers that do not fit into wire messages
            wrong = InvalidArgument(f"program {guest.name!r} used a number out of range: {exc}")
            self._end(guest, wrong.record())
            return
        if ended:
            self._release(guest)
        elif not guest.ended:
            self._set_timer(guest, turn.wake_in_s)

    def _set_timer(self, guest: Guest, wake_in_s: float | None) -> None:
        if guest.timer is not None:
            guest.timer.cancel()
            guest.timer = None
        if wake_in_s is None:
            return
        if wake_in_s > 0:
            guest.timer = self._loop.call_later(wake_in_s, self._time_come, guest)
        else:
            self._time_come(guest)

    def _time_come(self, guest: Guest) -> None:
        guest.timer = None
        guest.inbox.append(m.TimeCome())
        self._schedule(guest)

    # -- ends --------------------------------------------------------------------------------------

    def _end(self, guest: Guest, error: ErrorRecord) -> None:
        if guest.ended:
            return
        self._report_spent(guest)
        ended = m.Ended("terminated", "null", error, [], [])
        self._report.calls(guest.number, _encoded([ended]))
        self._release(guest)
        self._schedule_round()

    def _report_spent(self, guest: Guest) -> None:
        runner = guest.runner
        if runner is not None:
            self._report.spent(guest.number, runner.cpu_ns, runner.memory_bytes)

    def _release(self, guest: Guest) -> None:
        guest.ended = True
        if guest.family is not None:
            guest.note_cpu()
            self._families.leave(guest.family_number)
        del self._guests[guest.number]
        if guest.timer is not None:
            guest.timer.cancel()
        for task in guest.requests.values():
            task.cancel()
        if guest.io is not None:
            guest.io.close()
        if guest.runner is not None:
            guest.runner.close()
        if self._on_end is not None:
            self._on_end()

    # -- what a guest does besides commands --------------------------------------------------------

    def _log(self, guest: Guest, level: str, text: str, fields: Mapping[str, Any]) -> None:
        if guest.log_bytes_left <= 0:
            return
        guest.log_bytes_left -= len(text) + 1 + (len(msgspec.json.encode(fields)) if fields else 0)
        if guest.log_bytes_left <= 0:
            text = f"the program has printed {guest.limits.log_bytes} bytes; the rest is dropped"
            level, fields = "error", {}
        self._report.log(guest.number, level, text, fields)

    def fetch(self, number: int, call: m.Fetch, done: FetchEnded) -> None:
        """Make an HTTP request for a guest; ``done`` gets the answer, unless the guest ends."""
        guest = self._guests.get(number)
        if guest is not None:
            self._fetch(guest, call, done)

    def _fetch(self, guest: Guest, call: m.Fetch, done: FetchEnded) -> None:
        if len(guest.requests) >= guest.limits.outstanding_io:
            error = QuotaExceeded(
                f"{len(guest.requests)} HTTP requests are in progress; "
                f"{guest.limits.outstanding_io} are allowed at a time: await some of them first"
            )
            done(m.FetchFailed(call.request, error.record()))
            return
        if call.request in guest.requests:
            twice = InvalidArgument(f"the program used HTTP request number {call.request} twice")
            self._end(guest, twice.record())
            return
        task = self._loop.create_task(self._request(guest, call, done))
        guest.requests[call.request] = task

    async def _request(self, guest: Guest, call: m.Fetch, done: FetchEnded) -> None:
        event: m.Fetched | m.FetchFailed
        try:
            reply = await guest.network.request(
                call.method, call.url, content=call.body, headers=call.headers
            )
            event = m.Fetched(
                call.request, reply.status, dict(reply.headers), str(reply), reply.body
            )
        except QuireError as exc:
            event = m.FetchFailed(call.request, exc.record())
        except Exception as exc:  # headers or a body that the HTTP client refuses
            wrong = InvalidArgument(f"{call.method} {call.url}: {type(exc).__name__}: {exc}")
            event = m.FetchFailed(call.request, wrong.record())
        guest.requests.pop(call.request, None)
        done(event)

    def _io_of(self, guest: Guest) -> GuestIo:
        if guest.io is None:
            guest.io = GuestIo(guest, partial(self._answer, guest))
        return guest.io

    def _answer(self, guest: Guest, event: m.GuestEvents) -> None:
        if not guest.ended:
            guest.inbox.append(event)
            self._schedule(guest)


def _encoded(calls: Sequence[m.GuestCalls]) -> msgspec.Raw:
    return msgspec.Raw(_CALLS.encode(calls))


def _trapped(guest: Guest, trap: GuestTrapped) -> QuireError:
    limits = guest.limits
    if not trap.interrupted:
        return ProgramTerminated(f"program {guest.name!r} broke its sandbox's rules: {trap}")
    if guest.turn_s <= 0:
        return _out_of_time(guest)
    return QuotaExceeded(
        f"program {guest.name!r} computed for {limits.turn_ms} ms without awaiting: await more "
        "often, or ask for a larger quota"
    )


def _not_carried_on(guest: Guest, exc: Exception) -> QuireError:
    return ProgramTerminated(
        f"program {guest.name!r} caused an error in its sandbox: {type(exc).__name__}"
    )


def _out_of_time(guest: Guest) -> QuireError:
    family = guest.family
    if family is not None and guest.own_left_ms > 0:
        return QuotaExceeded(
            f"program {guest.name!r} and its family (its launcher and their children) have used "
            f"{family.limit_ms} ms of processor time, which is their limit"
        )
    return QuotaExceeded(
        f"program {guest.name!r} has used {guest.limits.cpu_ms} ms of processor time, which is its "
        "limit"
    )
