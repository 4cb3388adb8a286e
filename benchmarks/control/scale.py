"""Measures control's cost of a message, by number of live calls: it must not grow with the number
of waiting calls.

    python benchmarks/control/scale.py [--quick] [--calls 64 1000 10000] [--policy fcfs plas]

Drives ``Controller`` in virtual time over an engine that computes nothing (``light_engine``). The
number of live calls is constant, each in a program of its own; at most ``--sequences`` of them have
a sequence. The processor time of ``Controller.handle`` is divided by the number of messages that
the engine ran; it includes calls that begin and end in between. Messages have one step, which is
the highest load for control. Both forms of control run, each in processes of its own, if ``quire
compile`` was run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measurement import figure, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.cli.compiled_control import COMPILED_VARIABLE, form_of_nodes
from quire.control.policies import POLICIES

FORMS = {"interpreted": "0", "compiled": "1"}
NUM_MESSAGES = 300
WARM_UP = 150


def measure(num_calls: int, policy: str, num_sequences: int) -> dict[str, float]:
    """Measure in this process, whose form of control is fixed. It collects garbage as seldom as a
    node does."""
    from benchmarks.control.load import ClosedLoop, Shape
    from quire.core.interpreter import collect_seldom, settle
    from quire.core.scheduler_config import SchedulerConfig
    from quire.simulation import LightEngine, light_pool

    collect_seldom()
    engine = LightEngine(light_pool(num_blocks=100_000, max_sequences=num_sequences))
    config = SchedulerConfig(policy=policy, max_steps_per_message=1)
    loop = ClosedLoop(engine, config, num_calls, Shape((32, 64), (256, 768)))
    loop.run(WARM_UP)
    settle()
    measured = loop.run(NUM_MESSAGES)
    return {"ms_per_message": measured.ms_per_message, "slowest_ms": 1e3 * measured.slowest_s}


def run_form(form: str, num_calls: int, policy: str, num_sequences: int) -> dict[str, float]:
    """Measure in a process of its own, whose control has this form."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", form, "--calls", str(num_calls), "--policy", policy,
         "--sequences", str(num_sequences)],
        env={**os.environ, COMPILED_VARIABLE: FORMS[form]},
        stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--calls", type=int, nargs="+", default=[64, 1000, 10_000])
    made.add_argument("--policy", nargs="+", choices=POLICIES, default=["fcfs", "round_robin"])
    made.add_argument("--sequences", type=int, default=64)
    made.add_argument("--one", choices=FORMS, help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.one:
        one = measure(arguments.calls[0], arguments.policy[0], arguments.sequences)
        print(json.dumps(one))
        return
    compiled = form_of_nodes()
    if not compiled.is_compiled:
        print(f"as Python alone: {compiled.reason}", file=sys.stderr)
    forms = [form for form in FORMS if form == "interpreted" or compiled.is_compiled]
    contenders = {
        (form, policy, num_calls): partial(run_form, form, num_calls, policy, arguments.sequences)
        for form in forms
        for policy in arguments.policy
        for num_calls in arguments.calls
    }
    names = {" ".join(map(str, key)): one for key, one in contenders.items()}
    results = take_turns("scale", names, rounds_of(arguments))
    rows = []
    for key, name in zip(contenders, names, strict=True):
        form, policy, num_calls = key
        cost = figure([one["ms_per_message"] for one in results[name]])
        rows.append(
            {"control": form, "policy": policy, "num_calls": num_calls}
            | {"ms_per_message": cost.rounded()}
            | {"slowest_ms": figure([one["slowest_ms"] for one in results[name]]).rounded()}
        )
    print_table(
        "what a message costs control",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in row.items()} for row in rows],
    )
    for policy in arguments.policy:
        series = {
            form: [
                figure([one["ms_per_message"] for one in results[f"{form} {policy} {num}"]])
                for num in arguments.calls
            ]
            for form in forms
        }
        draw_bars(
            arguments.out / f"control-scale-{policy}.png",
            f"Control's cost of a message ({policy}, {arguments.sequences} sequences)",
            "ms of one core",
            [f"{num} calls" for num in arguments.calls],
            series,
        )
    emit(
        "control/scale",
        arguments.out,
        num_sequences=arguments.sequences,
        num_messages=NUM_MESSAGES,
        results=rows,
    )


if __name__ == "__main__":
    main()
