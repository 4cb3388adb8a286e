"""Measures the processor time of a simulated call in the midst of a long trace, where batches are
full.

    python benchmarks/autellix/simulation_cost.py [--since 12] [--until 18] [--policy quire]

Plays ShareGPT on 64 engines at a load of 0.8, as ``quire sim --workload sharegpt --engines 64
--seed 1`` does, from the start to ``--until`` virtual seconds, and measures what lies behind
``--since``. Short traces end in messages with one row each, in which a call takes many times more
messages than here. A call is 277 generated tokens, the mean of the workload. The time is that of
control, engines and players together, in the form of control that ``quire`` itself would run.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from time import process_time
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.cli.compiled_control import form_of_nodes

NUM_PROGRAMS = 3000
CALL_TOKENS = 277


def measure(since_s: float, until_s: float, num_engines: int, policy: str) -> dict[str, float]:
    """Return the figures of the virtual seconds from ``since_s`` to ``until_s``."""
    from quire.core.interpreter import collection_paused
    from quire.core.scheduler_config import SchedulerConfig
    from quire.simulation.engines import EngineSpec
    from quire.simulation.light_engine import LightEngine
    from quire.simulation.studies import Study
    from quire.simulation.trial import SimulationRun

    spec = EngineSpec(num_engines=num_engines)
    study = Study("sharegpt", NUM_PROGRAMS, seed=1, engines=spec, load=0.8).settled()
    plans, times_s = study.drawn()
    run = SimulationRun(plans, times_s, spec, SchedulerConfig(policy=policy))
    # a run knows no end but its last program's, so its insides are driven here
    for number, time_s in enumerate(times_s):
        run._simulation.at(time_s, partial(run._begin, number))
    marks = []
    with collection_paused():
        for at_s in (since_s, until_s):
            run._simulation.run(at_s)
            num_tokens = sum(
                cast(LightEngine, one).num_tokens for one in run._shell.engines.values()
            )
            marks.append((process_time(), run._num_messages, num_tokens))
    (began_s, messages, tokens), (ended_s, more_messages, more_tokens) = marks
    num_messages, num_tokens = more_messages - messages, more_tokens - tokens
    elapsed_s = ended_s - began_s
    return {
        "messages": num_messages,
        "tokens_per_message": round(num_tokens / num_messages, 2),
        "us_per_message": round(1e6 * elapsed_s / num_messages, 1),
        "us_per_token": round(1e6 * elapsed_s / num_tokens, 2),
        "ms_per_call": round(1e3 * elapsed_s / num_tokens * CALL_TOKENS, 2),
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--since", type=float, default=12.0)
    made.add_argument("--until", type=float, default=18.0)
    made.add_argument("--engines", type=int, default=64)
    made.add_argument("--policy", default="quire")
    arguments = made.parse_args()
    figures = measure(arguments.since, arguments.until, arguments.engines, arguments.policy)
    print_table("what a simulated call costs", [figures])
    emit(
        "autellix/simulation_cost",
        arguments.out,
        control=str(form_of_nodes()),
        since_s=arguments.since,
        until_s=arguments.until,
        num_engines=arguments.engines,
        policy=arguments.policy,
        **figures,
    )


if __name__ == "__main__":
    main()
