"""Measures what the record of calls costs control: the same load with a node's listeners and
without one.

    python benchmarks/control/tracing.py [--quick] [--calls 1000]

As ``scale.py``, in virtual time over an engine that computes nothing. ``long`` calls generate 256
to 768 tokens, as chats do; ``short`` ones 4 to 12, so that calls begin and end in every message.
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
from benchmarks.report import emit, print_table
from quire.cli.compiled_control import COMPILED_VARIABLE, form_of_nodes

FORMS = {"interpreted": "0", "compiled": "1"}
ANSWERS = {"long": (256, 768), "short": (4, 12)}
NUM_MESSAGES = 300
WARM_UP = 150


def measure(length: str, num_calls: int, *, is_traced: bool) -> float:
    """Return the milliseconds of one message in this process, whose form of control is fixed."""
    from benchmarks.control.load import ClosedLoop, Shape
    from quire.core.interpreter import collect_seldom, settle
    from quire.core.scheduler_config import SchedulerConfig
    from quire.node.tracing.book import TraceBook
    from quire.node.tracing.classes import ProgramClasses
    from quire.node.tracing.fan_out import Listeners
    from quire.simulation import LightEngine, light_pool

    collect_seldom()
    engine = LightEngine(light_pool(num_blocks=100_000, max_sequences=64))
    config = SchedulerConfig(max_steps_per_message=1)
    listener = Listeners([TraceBook(), ProgramClasses()]) if is_traced else None
    shape = Shape((32, 64), ANSWERS[length])
    loop = ClosedLoop(engine, config, num_calls, shape, listener=listener)
    loop.run(WARM_UP)
    settle()
    return loop.run(NUM_MESSAGES).ms_per_message


def run_form(form: str, length: str, num_calls: int, traced: str) -> float:
    """Measure in a process of its own, whose control has this form."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", length, traced, "--calls", str(num_calls)],
        env={**os.environ, COMPILED_VARIABLE: FORMS[form]},
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(json.loads(done.stdout))


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--calls", type=int, default=1000)
    made.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.one:
        length, traced = arguments.one
        print(json.dumps(measure(length, arguments.calls, is_traced=traced == "on")))
        return
    compiled = form_of_nodes()
    if not compiled.is_compiled:
        print(f"as Python alone: {compiled.reason}", file=sys.stderr)
    forms = [form for form in FORMS if form == "interpreted" or compiled.is_compiled]
    names = {
        f"{form} {length} {traced}": partial(run_form, form, length, arguments.calls, traced)
        for form in forms
        for length in ANSWERS
        for traced in ("off", "on")
    }
    results = take_turns("tracing", names, rounds_of(arguments))
    rows = []
    for form in forms:
        for length in ANSWERS:
            off, on = (results[f"{form} {length} {traced}"] for traced in ("off", "on"))
            ratio = figure([with_it / without for with_it, without in zip(on, off, strict=True)])
            rows.append(
                {"control": form, "calls": length, "ms_per_message": figure(off).rounded()}
                | {"traced_ms": figure(on).rounded(), "ratio": ratio.rounded()}
            )
    print_table(
        "what the record of calls costs control",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in row.items()} for row in rows],
    )
    emit("control/tracing", arguments.out, num_messages=NUM_MESSAGES, results=rows)


if __name__ == "__main__":
    main()
