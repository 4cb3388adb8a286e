"""Runs a recorded event log through a fresh controller and compares the actions.

A log that replays equal reproduces a bug without the engine, the programs or the clients; one that
diverges shows the first event that this release decides differently. No I/O except reading the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire import __version__
from quire.control import Controller
from quire.core.actions import Action
from quire.core.config import TenantConfig
from quire.core.events import Event
from quire.core.tracing import TraceListener
from quire.node.control.control_factory import make_controller
from quire.node.control.recorder import ActionChain, LogEntry, LogHeader, describe, read_log


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first event with different actions, or with different ones before it. ``index`` counts
    from 0. ``actions``: those of this release, or its exception."""

    index: int
    event: str
    time_s: float
    actions: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """``recorded_by`` and ``replayed_by`` are releases of quire.

    ``failure``: the last exception of the controller, the same in the recorded run and in this one.
    ``num_cut_bytes``: of a last message that was not written to its end, and is left out.
    """

    num_events: int
    num_actions: int
    recorded_by: str
    replayed_by: str
    divergence: Divergence | None
    failure: str | None = None
    num_cut_bytes: int = 0

    @property
    def equal(self) -> bool:
        return self.divergence is None


def replay(
    path: Path, watch: Callable[[Event, Sequence[Action]], None] | None = None
) -> ReplayReport:
    """Replay the log at ``path`` up to its end or its first divergence. ``watch`` is called with
    each event and its actions.

    Raises:
        InvalidArgument: not an event log, or it cannot be read.
        ProtocolMismatch: a log of another protocol version.
    """
    cut: list[int] = []
    messages = read_log(path, cut.append)
    header = next(messages)
    assert isinstance(header, LogHeader)
    run = Replay(header, watch=watch)
    divergence = None
    for entry in messages:
        assert isinstance(entry, LogEntry)
        divergence = run.step(entry)
        if divergence is not None:
            break
    return ReplayReport(
        run.num_events,
        run.num_actions,
        header.release,
        __version__,
        divergence,
        run.failure,
        num_cut_bytes=sum(cut),
    )


class Replay:
    """A controller that receives recorded events one by one. ``listener``: that of the controller.
    ``watch``: see ``replay``."""

    def __init__(
        self,
        header: LogHeader,
        listener: TraceListener | None = None,
        watch: Callable[[Event, Sequence[Action]], None] | None = None,
    ) -> None:
        self.controller = _controller(header, listener)
        self._watch = watch
        self._chain = ActionChain()
        self.num_events = 0
        self.num_actions = 0
        self.failure: str | None = None

    def step(self, entry: LogEntry) -> Divergence | None:
        """Handle one event; returns the divergence from the recorded actions, or ``None``."""
        failure, actions = None, []
        try:
            actions = self.controller.handle(entry.event)
        except (
            Exception
        ) as exc:  # compared, not raised: the recorded controller may have raised too
            failure = self.failure = describe(exc)
        self.num_events += 1
        self.num_actions += len(actions)
        if self._chain.extend(actions) == entry.digest and failure == entry.failure:
            if self._watch is not None:
                self._watch(entry.event, actions)
            return None
        answer = repr(actions) if failure is None else f"raised {failure}"
        return Divergence(self.num_events - 1, repr(entry.event), entry.event.time_s, answer)


def _controller(header: LogHeader, listener: TraceListener | None) -> Controller:
    tenants = tuple(
        TenantConfig(tenant.id, weight=tenant.weight, quotas=tenant.quotas, totals=tenant.totals)
        for tenant in header.tenants
    )
    return make_controller(header.scheduler, tenants, listener=listener)
