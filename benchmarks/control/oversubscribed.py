"""Measures the cost of too little memory: control's time and tokens per second, by number of
requests.

    python benchmarks/control/oversubscribed.py [--quick] [--requests 10 50 200 400] [--policy fcfs]

Drives ``Controller`` in virtual time over an engine that computes nothing (``light_engine``), whose
cache has room for about eight of the requests (8 MiB for the shipped model). The number of live
requests is constant. Tokens per second are computed from the sum of the engine's modelled time and
control's processor time, as if they never overlapped, which is the worst case for control.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.control.load import ClosedLoop, Measured, Shape
from benchmarks.measurement import figure, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation import LightEngine, StepCost, light_pool

NUM_BLOCKS = 85
NUM_HOST_BLOCKS = 2730
STEP_S, TOKEN_S = 0.002, 0.0001
NUM_MESSAGES, WARM_UP = 400, 200


def measure(num_requests: int, policy: str) -> Measured:
    engine = LightEngine(
        light_pool(num_blocks=NUM_BLOCKS, num_host_blocks=NUM_HOST_BLOCKS, max_sequences=256),
        StepCost(message_s=0.0, step_s=STEP_S, row_s=0.0, prompt_token_s=TOKEN_S),
    )
    config = SchedulerConfig(policy=policy, max_steps_per_message=1)
    loop = ClosedLoop(engine, config, num_requests, Shape((32, 128), (32, 128)))
    loop.run(WARM_UP)
    return loop.run(NUM_MESSAGES)


def row_of(num_requests: int, rounds: list[Measured]) -> dict[str, object]:
    return {
        "num_requests": num_requests,
        "control_ms": figure([one.ms_per_message for one in rounds]).rounded(),
        "tokens_per_s": figure([_tokens_per_s(one) for one in rounds]).rounded(),
        "engine_share": figure(
            [one.engine_s / (one.engine_s + one.control_s) for one in rounds]
        ).rounded(),
        "num_failed": max(one.num_failed for one in rounds),
    }


def _tokens_per_s(measured: Measured) -> float:
    return measured.num_tokens / (measured.engine_s + measured.control_s)


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--requests", type=int, nargs="+", default=[10, 50, 200, 400])
    made.add_argument("--policy", default="fcfs")
    arguments = made.parse_args()
    contenders = {
        str(number): partial(measure, number, arguments.policy) for number in arguments.requests
    }
    results = take_turns("oversubscribed", contenders, rounds_of(arguments))
    rows = [row_of(number, results[str(number)]) for number in arguments.requests]
    print_table(
        f"{NUM_BLOCKS} blocks, {arguments.policy}",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in row.items()} for row in rows],
    )
    tokens = [figure([_tokens_per_s(one) for one in results[str(n)]]) for n in arguments.requests]
    draw_bars(
        arguments.out / "control-oversubscribed.png",
        f"Tokens a second with {NUM_BLOCKS} blocks",
        "tokens/s",
        [f"{number} requests" for number in arguments.requests],
        {arguments.policy: tokens},
    )
    emit(
        "control/oversubscribed",
        arguments.out,
        policy=arguments.policy,
        num_blocks=NUM_BLOCKS,
        num_host_blocks=NUM_HOST_BLOCKS,
        results=rows,
    )


if __name__ == "__main__":
    main()
