"""The embedded collection: nearest rows, whatever the order in which they came."""

from __future__ import annotations

from random import Random

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.workflow import vectors
from quire.programs.workflow.vectors import ExactVectors


async def test_the_nearest_by_angle_and_the_first_of_equals() -> None:
    rows = ExactVectors()
    await rows.add(2, [[2, 0], [0, 5], [1, 1]], ["right, too", "up", "between"])
    await rows.add(0, [[3, 0], [1, 0]], ["right", "right again"])
    assert await rows.nearest([0.1, 0], 4) == ["right", "right again", "right, too", "between"]
    assert await rows.nearest([0, 1], 1) == ["up"]
    assert (await rows.nearest([-1, 0], 9))[:3] == ["up", "between", "right"]
    rows.close()
    assert await rows.nearest([1, 0], 1) == []


async def test_results_do_not_depend_on_the_order_of_ingestion() -> None:
    random = Random(0)
    given = [[random.gauss(0, 1) for _ in range(8)] for _ in range(40)]
    wanted = [random.gauss(0, 1) for _ in range(8)]
    found: list[list[str]] = []
    for seed in range(3):
        stages = list(range(0, 40, 8))
        Random(seed).shuffle(stages)
        rows = ExactVectors()
        for first in stages:
            texts = [str(n) for n in range(first, first + 8)]
            await rows.add(first, given[first : first + 8], texts)
            await rows.nearest(wanted, 1)
        found.append(await rows.nearest(wanted, 40))
    assert found[0] == found[1] == found[2]


async def test_wrong_dimensions_and_too_many_rows_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = ExactVectors()
    await rows.add(0, [[1, 0]], ["a"])
    for refused in (rows.add(1, [[1, 0, 0]], ["b"]), rows.nearest([1], 1)):
        with pytest.raises(InvalidArgument, match="dimensions, those stored before have 2"):
            await refused
    monkeypatch.setattr(vectors, "MAX_ROWS", 1)
    with pytest.raises(InvalidArgument, match="2 chunks; the embedded store holds 1"):
        await rows.add(1, [[0, 1]], ["b"])
