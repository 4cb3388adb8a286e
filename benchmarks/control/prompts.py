"""Measures the processor time of a call by the length of its prompt: what each page adds.

    python benchmarks/control/prompts.py [--quick] [--tokens 256 2048 16384]

Plays programs in virtual time on two modelled engines, as ``quire sim`` does, one after another.
``computed``: a program's first call, whose whole prompt is new. ``cached``: one of the calls that
go on from the prompt and answer before, so that all but the last pages are found in the prefix
index. Answers have 16 tokens. The time is that of control, engines and players together. The
form of control is the one that ``quire`` itself would run.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measurement import figure, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.report import emit, print_table
from quire.cli.compiled_control import form_of_nodes

NUM_ANSWER = 16
PAGE_SIZE = 16
NUM_PROGRAMS = 20
NUM_CACHED = 10


def measure(num_tokens: int, num_cached: int) -> float:
    """Return the milliseconds of a program whose first prompt has ``num_tokens``, with
    ``num_cached`` calls that go on from it."""
    from quire.core.scheduler_config import SchedulerConfig
    from quire.simulation.engines import EngineSpec
    from quire.simulation.trial import SimulationRun
    from quire.simulation.workloads.plan import CallPlan, ProgramPlan

    calls = [CallPlan(num_tokens, NUM_ANSWER)]
    calls += [
        CallPlan(PAGE_SIZE, NUM_ANSWER, extends=last, after=(last,)) for last in range(num_cached)
    ]
    plans = [ProgramPlan("prompts", tuple(calls))] * NUM_PROGRAMS
    spec = EngineSpec(num_engines=2, kv_tokens=4 * (num_tokens + 1024), page_size=PAGE_SIZE)
    times_s = [0.0] + [float("inf")] * (NUM_PROGRAMS - 1)
    run = SimulationRun(plans, times_s, spec, SchedulerConfig(policy="quire"))
    began_s = process_time()
    run.run()
    return 1e3 * (process_time() - began_s) / NUM_PROGRAMS


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--tokens", type=int, nargs="+", default=[256, 2048, 16_384])
    arguments = made.parse_args()
    form = form_of_nodes()
    contenders = {
        f"{num_tokens} {num_cached}": partial(measure, num_tokens, num_cached)
        for num_tokens in arguments.tokens
        for num_cached in (0, NUM_CACHED)
    }
    results = take_turns("prompts", contenders, rounds_of(arguments))
    rows = []
    for num_tokens in arguments.tokens:
        computed = figure(results[f"{num_tokens} 0"]).median
        whole = figure(results[f"{num_tokens} {NUM_CACHED}"]).median
        rows.append(
            {
                "num_tokens": num_tokens,
                "num_pages": num_tokens // PAGE_SIZE,
                "computed_ms": round(computed, 3),
                "cached_ms": round((whole - computed) / NUM_CACHED, 3),
            }
        )
    print_table("what a call costs, by the length of its prompt", rows)
    emit("control/prompts", arguments.out, is_compiled=form.is_compiled, results=rows)


if __name__ == "__main__":
    main()
