"""Compares admission by the working sets of programs with plain LRU, with more agents than fit.

    python benchmarks/autellix/admission.py [--quick] [--over 1 2 4 8] [--seeds 1 2 3]

Closed arrivals: as many agents at a time as their working sets fit, times ``--over``; each agent
that ends makes place for another. An agent's working set is its context at its calls, on average.
*lru* is the same scheduler with ``pausing`` off: calls are admitted one by one, and the prefix
cache evicts what was used longest ago. *no holds* pauses programs too, but keeps nobody's room over
a wait: whoever calls takes that of those that do not. Chosen before the first run: one engine of 64
sequences with the simulator's default costs, a pool for 32 agents (``--quick``: 16), no host tier,
four steps to a message, three agents for each place. Throughput is that of generated tokens;
*cached* is the share of prompt tokens that were found. Deterministic: a second run gives the same
rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.core.scheduler_config import PausingConfig, SchedulerConfig
from quire.simulation.arrivals import Arrivals
from quire.simulation.engines import EngineSpec, costs_named
from quire.simulation.outcomes import Summary
from quire.simulation.step_cost import StepCost
from quire.simulation.studies import Study, examine
from quire.simulation.workloads import create_workload, draw_programs

NUM_FIT = 32
QUICK_NUM_FIT = 16
PROGRAMS_EACH = 3
NUM_SAMPLES = 500
SYSTEMS = {
    "lru": PausingConfig(above=0.0),
    "no holds": PausingConfig(max_hold_s=0.0),
    "working sets": PausingConfig(),
}


def mean_context(workload: str) -> float:
    """Return the mean number of tokens of a program's context, over its calls and over programs."""
    plans = draw_programs(create_workload(workload), NUM_SAMPLES, ~0)
    lengths = [
        length + call.num_output
        for plan in plans
        for call, length in zip(plan.calls, plan.prompt_lengths, strict=True)
    ]
    return sum(lengths) / len(lengths)


def study_of(workload: str, over: int, num_fit: int, engines: EngineSpec, seed: int) -> Study:
    width = num_fit * over
    return Study(
        workload,
        width * PROGRAMS_EACH,
        seed=seed,
        engines=engines,
        arrivals=Arrivals("closed", width=width),
    )


def engines_of(
    workload: str, num_fit: int, host_share: float, disk_share: float, costs: Sequence[str]
) -> EngineSpec:
    """Return an engine with room for ``num_fit`` programs on the device, and for shares of that on
    host and disk."""
    kv_tokens = int(num_fit * mean_context(workload))
    return EngineSpec(
        kv_tokens=kv_tokens,
        host_tokens=int(host_share * kv_tokens),
        disk_tokens=int(disk_share * kv_tokens),
        cost=costs_named(costs, StepCost()),
    )


def row(study: Study, policy: str, pausing: PausingConfig) -> tuple[Summary, dict[str, object]]:
    scheduler = SchedulerConfig(policy=policy, step_quantum_s=0.032)
    summary = examine(study, replace(scheduler, pausing=pausing)).summary
    num_prompt = summary.num_prefilled_tokens + summary.num_cached_tokens
    return summary, {
        "tokens_per_s": round(summary.tokens_per_s, 1),
        "cached": round(summary.num_cached_tokens / num_prompt, 3),
        "response_s": round(summary.response_s.mean, 1),
        "response_p99_s": round(summary.response_s.p99, 1),
        "makespan_s": round(summary.makespan_s, 1),
        "preempted": summary.num_preemptions,
        "failed": summary.num_failed,
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--workload", default="agents")
    made.add_argument("--over", nargs="+", type=int, default=[1, 2, 4, 8])
    made.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    made.add_argument("--policy", default="fcfs")
    made.add_argument("--host-share", type=float, default=0.0, help="Of the pool, swapped out.")
    made.add_argument("--disk-share", type=float, default=0.0, help="Of the pool, on a disk.")
    made.add_argument("--cost", action="append", default=[], help="NAME=SECONDS, as in quire sim.")
    arguments = made.parse_args()
    num_fit = QUICK_NUM_FIT if arguments.quick else NUM_FIT
    seeds = arguments.seeds[:1] if arguments.quick else arguments.seeds
    engines = engines_of(
        arguments.workload, num_fit, arguments.host_share, arguments.disk_share, arguments.cost
    )
    rows, ratios = [], []
    for over in arguments.over:
        for seed in seeds:
            study = study_of(arguments.workload, over, num_fit, engines, seed)
            found = {}
            for name, pausing in SYSTEMS.items():
                found[name], figures = row(study, arguments.policy, pausing)
                print(f"{over}x, seed {seed}, {name}: {figures}", file=sys.stderr)
                rows.append({"over": over, "seed": seed, "system": name, **figures})
            ours = found["working sets"].tokens_per_s
            ratios.append(
                {"over": over, "seed": seed}
                | {
                    f"over {name}": round(ours / one.tokens_per_s, 3)
                    for name, one in found.items()
                    if name != "working sets"
                }
            )
    print_table(f"{num_fit} {arguments.workload} fit", rows)
    print_table("throughput of working sets", ratios)
    emit(
        "autellix/admission",
        arguments.out,
        workload=arguments.workload,
        policy=arguments.policy,
        num_fit=num_fit,
        host_share=arguments.host_share,
        disk_share=arguments.disk_share,
        cost=arguments.cost,
        ratios=ratios,
        rows=rows,
    )


if __name__ == "__main__":
    main()
