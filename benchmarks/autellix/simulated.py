"""Holds what the simulated comparisons have in common: the trace, its length and its engine.

Chosen before the first run and the same for all: one engine of 16 sequences, steps of 20 ms
whatever is in them (as for Autellix's Fig. 18), four steps to a message, a cache that holds
everything, 200 programs of ShareGPT or 30 of LATS (``--quick``: 50 or 8). The length matters: above
a load of 1 the queue grows with it, and with it the distance between policies.
"""

from __future__ import annotations

import sys

import benchmarks.options  # noqa: F401 - before control is imported, whose form it chooses
from quire.core.scheduler_config import LevelsConfig, SchedulerConfig
from quire.simulation.engines import IDENTICAL_STEPS, EngineSpec
from quire.simulation.studies import Study, examine

ENGINE = EngineSpec(max_sequences=16, kv_tokens=2_000_000, cost=IDENTICAL_STEPS)
NUM_PROGRAMS = {"sharegpt": 200, "lats": 30}
QUICK_NUM_PROGRAMS = {"sharegpt": 50, "lats": 8}
MESSAGE_S = 4 * IDENTICAL_STEPS.step_s


def study(workload: str, load: float, seed: int, *, quick: bool) -> Study:
    """Return the trace of ``workload`` at ``load``, with its rate of arrivals computed."""
    num_programs = (QUICK_NUM_PROGRAMS if quick else NUM_PROGRAMS)[workload]
    return Study(workload, num_programs, seed=seed, engines=ENGINE, load=load).settled()


def row(made: Study, policy: str, levels: LevelsConfig | None = None) -> dict[str, object]:
    """Return one run as a row of a table."""
    scheduler = SchedulerConfig(
        policy=policy, levels=levels or LevelsConfig(), step_quantum_s=MESSAGE_S
    )
    found = examine(made, scheduler)
    summary = found.summary
    latency_ms = 1000 * summary.token_latency_s.mean
    print(f"{made.workload} {policy}: {latency_ms:.2f} ms/token", file=sys.stderr)
    return {
        "ms_per_token": round(1000 * summary.token_latency_s.mean, 3),
        "ms_per_token_p95": round(1000 * summary.token_latency_s.p95, 3),
        "ms_per_token_p99": round(1000 * summary.token_latency_s.p99, 3),
        "response_s": round(summary.response_s.mean, 2),
        "response_p95_s": round(summary.response_s.p95, 2),
        "makespan_s": round(summary.makespan_s, 1),
        "preempted": summary.num_preemptions,
        "failed": summary.num_failed,
    }
