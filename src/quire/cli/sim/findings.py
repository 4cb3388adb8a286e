"""The findings of ``quire sim``, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from quire.cli.console import counted, output, table
from quire.cli.options.scheduler import WITH_LEVELS
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.outcomes import Summary, plain
from quire.simulation.studies import Study, StudyResult


def show(study: Study, capacity: float, findings: Sequence[StudyResult]) -> None:
    arrivals = study.arrivals
    comes = {
        "poisson": f"{arrivals.rate:.4g} a second, {arrivals.rate / capacity:.2f} of the capacity",
        "closed": f"{arrivals.width} at a time",
        "at-once": "all at once",
    }[arrivals.kind]
    if study.recorded is not None:
        comes = f"as recorded, {study.recorded.num_left_out} calls without an answer left out"
    rows = table(*_COLUMNS, right=_COLUMNS[1:])
    for one in findings:
        rows.add_row(one.policy, *_row(one.summary))
    # wide enough for all columns, also in a file
    console = output(130)
    console.print(
        f"{study.workload}: {counted(study.num_programs, 'program')}, {comes}; "
        f"{counted(study.engines.num_engines, 'engine')}, seed {study.seed}; "
        f"estimated capacity {capacity:.4g} programs/s"
    )
    console.print(rows)
    console.print("ms/token: response time over generated tokens; s: response time; in all, mean")


_COLUMNS = (
    "policy", "failed", "ms/token", "p50", "p95", "p99", "s", "p50", "p95", "p99", "waited s",
    "makespan s", "tokens/s", "preempted",
)  # fmt: skip


def _row(summary: Summary) -> tuple[str, ...]:
    latency, response = summary.token_latency_s, summary.response_s
    parts = (latency.mean, latency.p50, latency.p95, latency.p99)
    return (
        str(summary.num_failed),
        *(f"{1000 * one:.2f}" for one in parts),
        *(f"{one:.2f}" for one in (response.mean, response.p50, response.p95, response.p99)),
        f"{summary.waiting_s.mean:.2f}",
        f"{summary.makespan_s:.1f}",
        f"{summary.tokens_per_s:.0f}",
        str(summary.num_preemptions),
    )


def _study(study: Study) -> dict[str, object]:
    """Return the settings of a study; recorded programs are in their log."""
    values = asdict(study)
    del values["recorded"]
    return values


def as_json(
    study: Study, capacity: float, scheduler: SchedulerConfig, findings: Sequence[StudyResult]
) -> str:
    has_levels = any(one.policy in (*WITH_LEVELS, "quire") for one in findings)
    document = {
        "study": _study(study),
        "capacity": capacity,
        "balancer": scheduler.balancer,
        "pausing": asdict(scheduler.pausing),
        "levels": asdict(scheduler.levels) if has_levels else None,
        "policies": [
            {
                "policy": one.policy,
                "num_messages": one.num_messages,
                "summary": asdict(one.summary),
                "programs": [asdict(outcome) for outcome in one.outcomes],
            }
            for one in findings
        ],
    }
    return json.dumps(plain(document), indent=1) + "\n"
