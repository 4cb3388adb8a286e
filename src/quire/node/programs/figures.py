"""Figures of launched programs, kept beyond their end; and the number of ended programs by outcome.

An ``Observer`` of the control thread, which sees when control closes a program. Owns the
figures of launched programs until their records are forgotten. Knows no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.control import ProcessRow
from quire.core.actions import Action, ProgramClosed
from quire.core.events import (
    ENDED_BY_CLIENT,
    ENGINE_WAS_LOST,
    IDLE_FOR,
    LAST_CALL,
    REFUSED,
    Event,
)
from quire.core.ids import ProgramForm, ProgramId
from quire.programs.runtime.running import GuestSpent

_OUTCOMES = {one: one for one in ("finished", "failed", "cancelled", "terminated", REFUSED)} | {
    ENGINE_WAS_LOST: "engine_lost",
    LAST_CALL: "finished",
    ENDED_BY_CLIENT: "cancelled",
}
"""The outcome by the reason of the end. A reason that is not listed is a sentence: the node has
terminated the program."""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The resources that one program has used, without its children. ``guest_cpu_s`` and
    ``guest_memory_bytes`` (the maximum) are those of a sandboxed program, as far as its sandbox
    reports them."""

    num_prefilled_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_encoded_tokens: int = 0
    num_preemptions: int = 0
    service_s: float = 0.0
    waiting_s: float = 0.0
    guest_cpu_s: float | None = None
    guest_memory_bytes: int | None = None

    def __add__(self, other: ResourceUsage) -> ResourceUsage:
        """The sum over two incarnations of a program, one after the other."""
        return ResourceUsage(
            self.num_prefilled_tokens + other.num_prefilled_tokens,
            self.num_cached_tokens + other.num_cached_tokens,
            self.num_generated_tokens + other.num_generated_tokens,
            self.num_encoded_tokens + other.num_encoded_tokens,
            self.num_preemptions + other.num_preemptions,
            self.service_s + other.service_s,
            self.waiting_s + other.waiting_s,
        )


def with_guest(used: ResourceUsage | None, spent: Sequence[GuestSpent]) -> ResourceUsage | None:
    """``used``, plus what the program's incarnations have used of the sandbox."""
    cpu_s = [one.cpu_s for one in spent if one.cpu_s is not None]
    sizes = [one.memory_bytes for one in spent if one.memory_bytes is not None]
    if used is None or not cpu_s:
        return used
    return replace(used, guest_cpu_s=sum(cpu_s), guest_memory_bytes=max(sizes, default=None))


def usage_of(closed: ProgramClosed | ProcessRow) -> ResourceUsage:
    return ResourceUsage(
        num_prefilled_tokens=closed.num_prefilled_tokens,
        num_cached_tokens=closed.num_cached_tokens,
        num_generated_tokens=closed.num_generated_tokens,
        num_encoded_tokens=closed.num_encoded_tokens,
        num_preemptions=closed.num_preemptions,
        service_s=closed.service_s,
        waiting_s=closed.waiting_s,
    )


def _outcome(reason: str) -> str:
    if reason.startswith(IDLE_FOR):  # most sessions end so
        return "idle"
    return _OUTCOMES.get(reason, "terminated")


@dataclass(slots=True)
class _Kept:
    used: ResourceUsage | None = None


class ProgramFigures:
    """Call ``expect`` before a program's first event and ``forget`` with its record; these and
    ``of`` are for any thread, as each is a single operation on a dictionary. ``wait_control``
    returns when control has handled everything that was posted before."""

    def __init__(self, wait_control: Callable[[], object] = lambda: None) -> None:
        self._wait_control = wait_control
        self._kept: dict[ProgramId, _Kept] = {}
        self._ended: Counter[tuple[ProgramForm, str]] = Counter()

    def __len__(self) -> int:
        """Number of programs whose figures are kept or expected."""
        return len(self._kept)

    def expect(self, program: ProgramId) -> None:
        self._kept[program] = _Kept()

    def forget(self, programs: Sequence[ProgramId]) -> None:
        for program in programs:
            self._kept.pop(program, None)

    def of(self, programs: Sequence[ProgramId], *, ended: bool) -> ResourceUsage | None:
        """The sum over the incarnations of a program that control has closed; ``None`` if it has
        closed none. ``ended``: all have ended, so wait for control to close them."""
        kept = [self._kept.get(program) for program in programs]
        if ended and any(one is not None and one.used is None for one in kept):
            self._wait_control()
        used = [one.used for one in kept if one is not None and one.used is not None]
        return sum(used[1:], used[0]) if used else None

    def ended(self) -> Mapping[tuple[ProgramForm, str], int]:
        """Number of ended programs by form and outcome. Call it on the control thread."""
        return dict(self._ended)

    # -- an observer -------------------------------------------------------------------------------

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        for action in actions:
            if type(action) is ProgramClosed:
                self._closed(action)

    def _closed(self, action: ProgramClosed) -> None:
        kept = self._kept.get(action.program)
        if kept is not None:
            kept.used = usage_of(action)
        if action.reason == REFUSED:  # it has no record whose removal would forget it
            self.forget([action.program])
        self._ended[action.form, _outcome(action.reason)] += 1

    def observe_failure(self, event: Event, error: Exception) -> None:
        """Do nothing: no program was closed."""

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
