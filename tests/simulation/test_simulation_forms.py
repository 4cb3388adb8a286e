"""A trial in Python and one in this process's form: the same events, actions and outcomes.

``make test-compiled`` runs this on machine code; else it shows that processes do not differ, though
each hashes strings in its own way.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.compiled_control import COMPILED_VARIABLE
from quire.core.actions import Action
from quire.core.events import Event
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.control_core import ControlCore
from quire.simulation.engines import EngineSpec
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads import create_workload, draw_programs

ROOT = Path(__file__).parents[2]


class Recorded:
    """A controller, and a digest of all that it is told and decides."""

    def __init__(self, controller: ControlCore) -> None:
        self._controller = controller
        self.num_events = 0
        self.digest = hashlib.sha256()

    def handle(self, event: Event) -> list[Action]:
        actions = self._controller.handle(event)
        self.num_events += 1
        self.digest.update(repr((event, actions)).encode())
        return actions

    def check_invariants(self) -> None:
        self._controller.check_invariants()


def played(policy: str) -> list[str]:
    """Programs of several kinds on two engines that have little room for them."""
    plans = draw_programs(create_workload("mixed"), 4, seed=9)
    engines = EngineSpec(num_engines=2, max_sequences=4, kv_tokens=8000, host_tokens=8000)
    run = SimulationRun(plans, [0.0, 0.1, 0.1, 0.2], engines, SchedulerConfig(policy=policy))
    recorded = Recorded(run._shell.controller)
    run._shell.controller = recorded
    outcomes = run.run().outcomes
    assert not any(outcome.error for outcome in outcomes)
    return [repr(outcomes), str(recorded.num_events), recorded.digest.hexdigest()]


@pytest.mark.parametrize("policy", ["fcfs", "quire"])
def test_a_process_in_python_plays_the_same_events(policy: str) -> None:
    asked = f"import json, test_simulation_forms as t; print(json.dumps(t.played({policy!r})))"
    paths = os.pathsep.join([str(Path(__file__).parent), str(ROOT), *sys.path])
    environment = {**os.environ, COMPILED_VARIABLE: "0", "PYTHONPATH": paths}
    answer = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, check=True
    )
    assert json.loads(answer.stdout) == played(policy)
