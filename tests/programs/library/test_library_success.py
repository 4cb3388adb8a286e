"""Reasoning and agent programs with the shipped model: a few fixed instances of each.

``benchmarks/library/success.py`` measures them on more; its figures stand in benchmarks/README.md.
CodeAct needs a sandbox too and is run by tests/node/test_node_codeact.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.library.success import measure, wilson
from benchmarks.library.tasks import TASKS

NUM_CASES = 6
HELPS = ("recursion_of_thought", "graph_of_thought", "skeleton_of_thought", "react", "swarm")
"""Programs that do what plain decoding cannot; the others may only not be worse."""


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    tasks = [task for task in TASKS if task.program != "codeact"]
    return {row["program"]: row for row in asyncio.run(measure(tasks, NUM_CASES, seed=1))}


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [task.program for task in TASKS if task.program != "codeact"])
def test_a_program_solves_what_it_is_for(name: str, rows: dict[str, dict[str, Any]]) -> None:
    row = rows[name]
    assert row["instances"] == NUM_CASES
    if name in HELPS:
        assert row["success"] >= 0.6
        assert row["success"] > row["plain"]
    else:
        assert row["success"] >= max(0.5, row["plain"] - 1 / NUM_CASES)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.program)
def test_instances_are_seeded_and_different(task: Any) -> None:
    cases = task.cases(12, seed=3)
    assert cases == task.cases(12, seed=3)
    assert cases != task.cases(12, seed=4)
    assert len({case.question for case in cases}) == len(cases) >= 8


def test_the_interval_is_wilsons() -> None:
    """Against the figures of Brown, Cai and DasGupta (2001) and the ends."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=5e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=5e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=5e-4)
