"""What displaced decodes cost control is told apart from what its other work costs."""

from __future__ import annotations

import random

import pytest

from benchmarks.autellix.displacing import Handled, costs_of, play
from benchmarks.autellix.validate import Load, chats
from quire.simulation.engines import EngineSpec
from quire.simulation.step_cost import StepCost


def test_costs_of_opened_sequences_are_found_beside_those_of_messages_and_rows() -> None:
    drawn = random.Random(1)
    handled = []
    for _ in range(50):
        num_rows, num_new, num_again = (drawn.randrange(4) for _ in range(3))
        control_s = 1e-4 + 2e-5 + 1e-5 * num_rows + 3e-4 * num_new + 7e-4 * num_again
        handled.append(Handled(control_s, 0.01, 1, num_rows, num_new, num_again))
    assert costs_of(handled) == pytest.approx((3e-4, 7e-4))


def test_a_decode_that_goes_on_after_it_was_displaced_is_no_new_one() -> None:
    """Under ``plas`` a new chat displaces one that has generated much, under ``fcfs`` none."""
    plans = chats(8, seed=1)
    load = Load(1.0, plans, [0.2 * number for number in range(len(plans))])
    engines = EngineSpec(max_sequences=2, cost=StepCost(step_s=0.01))
    num_calls = sum(len(plan.calls) for plan in plans)
    for policy, is_displacing in (("fcfs", False), ("plas", True)):
        handled = play(load, engines, policy)
        assert sum(one.num_new for one in handled) == num_calls
        assert (sum(one.num_again for one in handled) > 0) == is_displacing
        assert sum(one.num_messages for one in handled) == sum(one.engine_s > 0 for one in handled)
