"""Vectors as an input of a query, as clients give them: lists of numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from programs_facts import node_with

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.core.ids import TenantId
from quire.programs.workflow import App, Engine, Graph, Node, workflow
from quire.testing import FakeEncoder

DIMENSIONS = 8


def searched() -> App:
    """Two texts are stored, and the nearest of each given vector is the result."""
    app = App("searched", [Engine("embedding"), Engine("vectors")])
    embed = Node("embedding", {"texts": "texts"}, {"rows": "vectors"}, "batchable", name="embed")
    ingest = Node(
        "vectors", {"texts": "texts", "rows": "vectors"}, {"written": "done"}, "batchable",
        {"operation": "ingest"}, name="ingest",
    )  # fmt: skip
    find = Node(
        "vectors", {"wanted": "vectors"}, {"found": "texts"}, None,
        {"operation": "search", "top_k": 1}, name="find",
    )  # fmt: skip
    ingest >> find
    app.update_template([embed, ingest, find])
    return app


async def ran(wanted: Any) -> Any:
    node = node_with(embedder=FakeEncoder(dimensions=DIMENSIONS))
    await node.start()
    try:
        query = json.dumps({"texts": ["one", "two"], "wanted": wanted})
        tenant = TenantId("default")
        return await node.launch(workflow(searched()), [query], tenant=tenant).result()
    finally:
        await node.stop()


async def test_a_client_gives_vectors_as_lists_of_numbers() -> None:
    assert len((await ran([[1.0] * DIMENSIONS, [0] * 7 + [1]]))["found"]) == 2
    with pytest.raises(ProgramFailed, match=r"3 .*dimensions|dimensions.* 3"):
        await ran([[1.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    "wanted",
    [
        [], [[]], [[1.0], [1.0, 2.0]], [["x"]], [[True]], [[float("nan")]], [[10**400]], [1.0],
        "x", [None],
    ],
)  # fmt: skip
def test_what_is_no_list_of_vectors_is_refused(wanted: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"'wanted' is .*: give a list of vectors, lists of"):
        Graph.optimize(searched(), {"texts": ["one"], "wanted": wanted})
