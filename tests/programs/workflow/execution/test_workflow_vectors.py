"""The collection of a query in the store of its node: batches, and what is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ProgramFailed
from quire.core.ids import TenantId
from quire.programs.vectors import CollectionPlace
from quire.programs.workflow.execution import vectors
from quire.programs.workflow.execution.vectors import QueryVectors
from quire.testing import LocalNode

TENANT = TenantId("default")


async def test_rows_come_in_batches_and_are_found_by_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vectors, "MAX_PUT", 2)
    monkeypatch.setattr(vectors, "MAX_SEARCHED", 1)

    async def main(api: Any) -> list[list[str]]:
        rows = QueryVectors(api)
        await rows.add(3, [[1, 0], [0, 1], [1, 1]], ["right", "up", "between"])
        await rows.add(0, [[2, 0]], ["first of equals"])
        return await rows.nearest([[1, 0], [0, 1]], 3)

    async with LocalNode() as local:
        assert await local.run(main) == [
            ["first of equals", "right", "between"],
            ["up", "between", "first of equals"],
        ]


async def test_nothing_is_found_where_nothing_was_stored() -> None:
    async def main(api: Any) -> list[list[str]]:
        return await QueryVectors(api).nearest([[1, 0], [0, 1]], 3)

    async with LocalNode() as local:
        assert await local.run(main) == [[], []]


async def test_queries_of_a_program_share_nothing_and_leave_nothing() -> None:
    left: list[bool] = []

    async with LocalNode() as local:

        async def main(api: Any) -> list[list[str]]:
            one, other = QueryVectors(api), QueryVectors(api)
            await one.add(0, [[1, 0]], ["one"])
            await other.add(0, [[1, 0]], ["other"])
            found = [(await rows.nearest([[1, 0]], 9))[0] for rows in (one, other)]
            await one.close()
            places = [
                CollectionPlace(TENANT, api.program, rows._name or "") for rows in (one, other)
            ]
            left.extend([await local.vectors.drop(place) for place in places])
            return found

        assert await local.run(main) == [["one"], ["other"]]
    assert left == [False, True]


async def test_other_dimensions_are_refused_by_name() -> None:
    async def main(api: Any) -> None:
        rows = QueryVectors(api)
        await rows.add(0, [[1, 0]], ["one"])
        await rows.nearest([[1, 0, 0]], 1)

    async with LocalNode() as local:
        with pytest.raises(ProgramFailed, match="has 3 dimensions, those stored before have 2"):
            await local.run(main)
