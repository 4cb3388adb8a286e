"""One guest of a host: its instance, its limits, what it has under way.

Belongs to the host's loop. Must not know when a guest gets its turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from quire.core.calls import AskService
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.host.family_cpu import FamilyCpu
from quire.programs.sandbox.host.guest_http import GuestHttp
from quire.programs.sandbox.host.service_questions import ServiceQuestions
from quire.programs.sandbox.limits import CallRate, GuestLimits
from quire.programs.services.network import Network
from quire.programs.services.operations import ProgramServices


class Runner(Protocol):
    """One guest's instance. ``GuestTrapped`` or a ``QuireError`` from any call ends it.

    ``cpu_ns``: what its calls have computed so far. ``memory_bytes``: how large its memory, which
    never becomes smaller, is; None where that cannot be told.
    """

    @property
    def cpu_ns(self) -> int: ...
    @property
    def memory_bytes(self) -> int | None: ...

    def attach(self, answers: Answers) -> None:
        """Before the first call: who answers its questions."""
        ...

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn: ...

    def wake(self, events: Sequence[m.GuestEvents], limit_s: float) -> m.Turn: ...

    def close(self) -> None: ...


class Guest:
    """One program in its instance. ``number`` is the host's name for it."""

    __slots__ = (
        "_network", "_new_network", "_noted_ns", "answers", "ended", "family", "family_number",
        "inbox", "io", "limits", "log_bytes_left", "name", "number", "rate", "requests", "runner",
        "scheduled", "start", "timer",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        name: str,
        start: Callable[[], tuple[Runner, m.GuestLaunch]],
        limits: GuestLimits,
        network: Callable[[], Network],
        now_s: float,
    ) -> None:
        self.number = number
        self.name = name
        self.start = start
        self.runner: Runner | None = None
        self.limits = limits
        self._new_network = network
        self._network: Network | None = None
        self.rate = CallRate(limits.calls_per_s, now_s)
        self.inbox: list[m.GuestEvents] = []
        self.scheduled = False
        self.ended = False
        self.timer: asyncio.TimerHandle | None = None
        self.requests: dict[int, asyncio.Task[None]] = {}
        self.io: GuestIo | None = None
        self.family: FamilyCpu | None = None
        self.family_number = 0
        self._noted_ns = 0
        """Of its time, that its family knows of."""
        self.answers: Answers
        self.log_bytes_left = limits.log_bytes

    @property
    def network(self) -> Network:
        """Made when it is asked for the first time: few programs do."""
        if self._network is None:
            self._network = self._new_network()
        return self._network

    def join(self, number: int, family: FamilyCpu) -> None:
        """What it computes counts there too."""
        self.family_number, self.family = number, family

    def note_cpu(self) -> None:
        """Behind a turn."""
        if self.family is not None and self.runner is not None:
            spent_ns = self.runner.cpu_ns
            self.family.spent_ns += spent_ns - self._noted_ns
            self._noted_ns = spent_ns

    @property
    def own_left_ms(self) -> float:
        """Of the processor time that it has for itself."""
        spent_ns = 0 if self.runner is None else self.runner.cpu_ns
        return self.limits.cpu_ms - spent_ns / 1e6

    @property
    def turn_s(self) -> float:
        """What the next turn may take: its own limit, or what is left of the whole."""
        left_ms = self.own_left_ms
        if self.family is not None:
            left_ms = min(left_ms, self.family.left_ms)
        return max(0.0, min(self.limits.turn_ms, left_ms)) / 1000


class GuestIo:
    """HTTP answers that one guest reads as they come; made when it asks for the first: few do.

    ``tell`` takes the answers to its questions.
    """

    def __init__(self, guest: Guest, tell: Callable[[m.GuestEvents], None]) -> None:
        self.http = GuestHttp(guest.network, guest.limits.outstanding_io)
        self._tell = tell
        self._services = ProgramServices(lambda: [self.http])
        self._questions = ServiceQuestions(guest.name, self._ask, self._answered)
        self._under_way: set[int] = set()

    def start(self, question: AskService) -> None:
        self._under_way.add(question.number)
        self._questions.start(question)

    async def _ask(self, question: AskService) -> Any:
        return await self._services.call(question.name, question.arguments)

    def drop(self, number: int) -> bool:
        """False: it is not one of this host's."""
        if number not in self._under_way:
            return False
        self._questions.drop(number)
        return True

    def _answered(self, event: m.GuestEvents) -> None:
        if isinstance(event, m.ServiceAnswered | m.ServiceRefused):
            self._under_way.discard(event.number)
        self._tell(event)

    def close(self) -> None:
        self._questions.close()
        self.http.close()
