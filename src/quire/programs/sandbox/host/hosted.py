"""One guest of a host: its instance, its limits, its pending requests.

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

FetchEnded = Callable[[m.Fetched | m.FetchFailed], None]
"""Takes the answer to an HTTP request."""


class GuestRunner(Protocol):
    """One guest's instance. ``GuestTrapped`` or a ``QuireError`` from any call ends it.

    ``cpu_ns``: processor time of its calls so far. ``memory_bytes``: the size of its memory, which
    never shrinks; None if it is not known.
    """

    @property
    def cpu_ns(self) -> int: ...
    @property
    def memory_bytes(self) -> int | None: ...

    def attach(self, answers: Answers) -> None:
        """Set the object that answers its questions, before the first call."""
        ...

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn: ...

    def wake(self, events: Sequence[m.GuestEvents], limit_s: float) -> m.Turn: ...

    def close(self) -> None: ...


class Guest:
    """One program in its instance. ``number``: the host's id for it."""

    __slots__ = (
        "_network", "_new_network", "_noted_ns", "answers", "ended", "family", "family_number",
        "inbox", "io", "is_recorded", "limits", "log_bytes_left", "name", "number", "rate",
        "requests", "runner", "scheduled", "start", "timer",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        name: str,
        start: Callable[[], tuple[GuestRunner, m.GuestLaunch]],
        limits: GuestLimits,
        network: Callable[[], Network],
        now_s: float,
    ) -> None:
        self.number = number
        self.name = name
        self.start = start
        self.runner: GuestRunner | None = None
        self.limits = limits
        self._new_network = network
        self._network: Network | None = None
        self.rate = CallRate(limits.calls_per_s, now_s)
        self.inbox: list[m.GuestEvents] = []
        self.is_recorded = False
        """Whether the node records the answers to its HTTP requests."""
        self.scheduled = False
        self.ended = False
        self.timer: asyncio.TimerHandle | None = None
        self.requests: dict[int, asyncio.Task[None]] = {}
        self.io: GuestIo | None = None
        self.family: FamilyCpu | None = None
        self.family_number = 0
        self._noted_ns = 0
        """The part of its processor time that was added to its family's."""
        self.answers: Answers
        self.log_bytes_left = limits.log_bytes

    @property
    def network(self) -> Network:
        """Created at its first use, because few programs use it."""
        if self._network is None:
            self._network = self._new_network()
        return self._network

    def join(self, number: int, family: FamilyCpu) -> None:
        """Count its processor time towards that of ``family``, too."""
        self.family_number, self.family = number, family

    def note_cpu(self) -> None:
        """Add its processor time to that of the family; called after a turn."""
        if self.family is not None and self.runner is not None:
            spent_ns = self.runner.cpu_ns
            self.family.spent_ns += spent_ns - self._noted_ns
            self._noted_ns = spent_ns

    @property
    def own_left_ms(self) -> float:
        """The rest of its own processor time, in milliseconds."""
        spent_ns = 0 if self.runner is None else self.runner.cpu_ns
        return self.limits.cpu_ms - spent_ns / 1e6

    @property
    def turn_s(self) -> float:
        """The limit of the next turn in seconds: its turn limit, or the processor time that is
        left."""
        left_ms = self.own_left_ms
        if self.family is not None:
            left_ms = min(left_ms, self.family.left_ms)
        return max(0.0, min(self.limits.turn_ms, left_ms)) / 1000


class GuestIo:
    """HTTP responses that one guest streams; created at the first request, because few programs
    stream.

    ``tell`` receives the answers to the guest's questions.
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
        return await self._services.ask(question.name, question.arguments)

    def drop(self, number: int) -> bool:
        """Cancel a question; return False if it is not one of this host's."""
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
