"""Records the calls of one simulated run as control reports them, and derives figures from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import benchmarks.options  # noqa: F401 - before control is imported, whose form it chooses
from quire.core.events import ProgramStarted
from quire.core.ids import ProgramId
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import CallRecord, MessageRecord, TransferRecord
from quire.simulation.outcomes import ProgramOutcome
from quire.simulation.studies import Study
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads import create_workload, draw_programs


class Calls:
    """A ``TraceListener`` that keeps the calls that have generated something."""

    def __init__(self) -> None:
        self.records: list[CallRecord] = []

    def program_started(self, started: ProgramStarted) -> None:
        pass

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None:
        pass

    def call_ended(self, call: CallRecord) -> None:
        if call.num_generated_tokens:
            self.records.append(call)

    def message_ended(self, message: MessageRecord) -> None:
        pass

    def transfer_ended(self, transfer: TransferRecord) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run. ``control_s``: the processor time of control in seconds, the one figure that is
    measured."""

    calls: Sequence[CallRecord]
    outcomes: Sequence[ProgramOutcome]
    control_s: float


def record(study: Study, scheduler: SchedulerConfig) -> Recorded:
    """Play ``study`` and keep its calls; ``scheduler`` names one of the policies that a node can
    run."""
    study = study.settled()
    plans = draw_programs(create_workload(study.workload), study.num_programs, study.seed)
    calls = Calls()
    times_s = study.arrivals.times_s(study.num_programs, study.seed)
    run = SimulationRun(plans, times_s, study.engines, scheduler, listener=calls).run()
    return Recorded(calls.records, run.outcomes, run.control_s)


def live_calls(calls: Iterable[CallRecord], num_points: int) -> list[tuple[float, float]]:
    """Divide the run into ``num_points`` equal times; return the middle of each in seconds, and how
    many calls were under way in it, on average."""
    spans = [(one.arrival_s, one.end_s) for one in calls if one.end_s is not None]
    width = max(end for _, end in spans) / num_points
    points = []
    for number in range(num_points):
        start, stop = number * width, (number + 1) * width
        busy = sum(max(0.0, min(end, stop) - max(begin, start)) for begin, end in spans)
        points.append((start + width / 2, busy / width))
    return points


def binned(
    pairs: Iterable[tuple[float, float]], edges: Sequence[float]
) -> list[tuple[float, float]]:
    """Return, for each range of the first figure that occurs, the mean of the second. Ranges begin
    at ``edges``, and the last one has no end."""
    groups: dict[float, list[float]] = {}
    for where, value in pairs:
        below = [edge for edge in edges if edge <= where]
        if below:
            groups.setdefault(below[-1], []).append(value)
    return [(edge, fmean(groups[edge])) for edge in sorted(groups)]


def wait_ratio(waiting_s: float, service_s: float) -> float:
    return waiting_s / service_s if service_s else 0.0


def by_output(calls: Iterable[CallRecord], edges: Sequence[float]) -> list[tuple[float, float]]:
    """Return the ratio of waiting to service of calls, by the number of their generated tokens
    (Fig. 6)."""
    return binned(
        ((c.num_generated_tokens, wait_ratio(c.waiting_s, c.service_s)) for c in calls), edges
    )


def by_calls(
    outcomes: Iterable[ProgramOutcome], edges: Sequence[float]
) -> list[tuple[float, float]]:
    """Return the ratio of waiting to service of programs, by the number of their calls (Fig. 6)."""
    return binned(((o.num_calls, wait_ratio(o.waiting_s, o.service_s)) for o in outcomes), edges)


def by_prompt(
    calls: Iterable[CallRecord], edges: Sequence[float], chosen: Callable[[CallRecord], bool]
) -> list[tuple[float, float]]:
    """Return the share of each prompt that was found in the prefix cache, by the prompt's length in
    tokens (Fig. 7)."""
    pairs = []
    for call in calls:
        length = call.num_prefilled_tokens + call.num_cached_tokens
        if chosen(call) and length:
            pairs.append((length, call.num_cached_tokens / length))
    return binned(pairs, edges)
