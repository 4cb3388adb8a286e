"""Measures what displaced decodes cost control in the runs of ``validate.py``.

    QUIRE_COMPILED=0 python benchmarks/autellix/displacing.py [--loads 0.5 0.8 0.95]

Plays the chats of ``validate.py`` in the simulator with the costs of its last run (the file of
``--validated``), and measures the processor time that control takes for each event. A decode that
was displaced goes on when a message opens its sequence again. *Each*: the further time of an event
that opens one sequence, by least squares, beside a constant, the messages that it sends and their
rows. *Of the load*: what all displaced decodes cost control, over the time that the engine works.
Counts are the same in each run; processor times depend on the machine and on the form of control,
of which the validated node had the interpreted one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.validate import LOADS, MAX_SEQUENCES, Load, loads_of
from benchmarks.options import plain_parser
from benchmarks.report import ROOT, emit, print_table
from quire.core.actions import Action, Dispatch
from quire.core.batch import Batch, OpenSequence
from quire.core.events import BatchCompleted, Event
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.control_core import ControlCore
from quire.simulation.engines import EngineSpec
from quire.simulation.overhead import num_rows
from quire.simulation.step_cost import StepCost
from quire.simulation.trial import SimulationRun

VALIDATED = ROOT / "benchmarks" / "results" / "autellix-validate.json"
KV_TOKENS = 60_000
SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Handled:
    """One event. ``num_new``, ``num_again``: sequences that its messages open for the first time,
    and after a displacement."""

    control_s: float
    engine_s: float
    num_messages: int
    num_rows: int
    num_new: int
    num_again: int


class Watched:
    """Control whose events are noted in ``handled``."""

    def __init__(self, control: ControlCore) -> None:
        self._control = control
        self.handled: list[Handled] = []

    def handle(self, event: Event) -> list[Action]:
        began_s = process_time()
        actions = self._control.handle(event)
        elapsed_s = process_time() - began_s
        self.handled.append(_noted(event, actions, elapsed_s))
        return actions

    def check_invariants(self) -> None:
        self._control.check_invariants()


def _noted(event: Event, actions: Sequence[Action], control_s: float) -> Handled:
    batches = [one.batch for one in actions if isinstance(one, Dispatch)]
    sent = [one for one in batches if isinstance(one, Batch)]
    opened = [one for batch in sent for one in batch.operations if isinstance(one, OpenSequence)]
    num_again = sum(one.num_generated > 0 for one in opened)
    engine_s = event.result.elapsed_s if isinstance(event, BatchCompleted) else 0.0
    rows = sum(map(num_rows, sent))
    return Handled(control_s, engine_s, len(sent), rows, len(opened) - num_again, num_again)


def play(load: Load, engines: EngineSpec, policy: str) -> list[Handled]:
    run = SimulationRun(load.plans, load.times_s, engines, SchedulerConfig(policy=policy))
    # a run tells nobody its events, so its shell gets a control that notes them
    watched = run._shell.controller = Watched(run._shell.controller)
    run.run()
    return watched.handled


def costs_of(handled: Sequence[Handled]) -> tuple[float, float]:
    """Return the further seconds of control for a sequence that is opened, and for one that is
    opened again; 0 if there was none."""
    features = np.array(
        [(1, one.num_messages, one.num_rows, one.num_new, one.num_again) for one in handled], float
    )
    found = np.linalg.lstsq(features, np.array([one.control_s for one in handled]), rcond=None)[0]
    return float(found[-2]), float(found[-1])


def row_of(load: Load, policy: str, handled: Sequence[Handled]) -> dict[str, Any]:
    new_s, again_s = costs_of([one for one in handled if one.engine_s])
    num_again = sum(one.num_again for one in handled)
    engine_s = sum(one.engine_s for one in handled)
    return {
        "load": load.share,
        "policy": policy,
        "messages": sum(one.num_messages for one in handled),
        "opened": sum(one.num_new for one in handled),
        "displaced": num_again,
        "control s": round(sum(one.control_s for one in handled), 3),
        "engine s": round(engine_s, 2),
        "ms for each opened": round(1000 * new_s, 3),
        "ms for each displaced": round(1000 * again_s, 3) if num_again else None,
        "of the load": f"{num_again * again_s / engine_s:.1g}",
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--validated", type=Path, default=VALIDATED,
                      help="results of validate.py, for their costs")  # fmt: skip
    made.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    made.add_argument("--policies", nargs="+", default=["fcfs", "plas"])
    arguments = made.parse_args()
    cost = StepCost(**json.loads(arguments.validated.read_text(encoding="utf-8"))["cost"])
    engines = EngineSpec(max_sequences=MAX_SEQUENCES, kv_tokens=KV_TOKENS, cost=cost)
    rows = [
        row_of(load, policy, play(load, engines, policy))
        for load in loads_of(engines, SECONDS, arguments.loads, 1)
        for policy in arguments.policies
    ]
    print_table("what displaced decodes cost control", rows)
    emit("autellix/displacing", arguments.out, rows=rows)


if __name__ == "__main__":
    main()
