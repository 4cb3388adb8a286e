"""Vectors stay packed between an encoder and a store, and nobody else sees them so.

As lists, those of the most chunks that a query may have would hold the loop of all programs for
seconds.
"""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.core.kept_queries_config import KeptQueriesConfig
from quire.programs.api import Api
from quire.programs.api.encode import EncodeFunctions
from quire.programs.api.packed_vectors import PackedVectors
from quire.programs.api.vectors import VectorsFunctions
from quire.programs.workflow import App, Engine, Graph, Growth, Node, Profile, run_query
from quire.programs.workflow.durable import KeptQueries, QueryId
from quire.programs.workflow.execution.growing import TemplateGrower
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.execution.vectors import QueryVectors
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.graphs.values import ValueType, joined, plain
from quire.programs.workflow.passes import OptPass
from quire.programs.workflow.runners import encoding
from quire.programs.workflow.runners.encoding import EncoderRunner
from quire.programs.workflow.runners.local import ToolRunner, VectorRunner
from quire.testing import LocalNode


def packed(*rows: list[float]) -> PackedVectors:
    return PackedVectors(b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows), len(rows[0]))


class Calls:
    """``Issuer`` of a node whose encoder gives the length of a text, and whose store has one row
    for each call."""

    def __init__(self) -> None:
        self.put: list[bytes] = []

    async def ask(self, name: str, **given: Any) -> Any:
        if name == "encoders.embed":
            values = struct.pack(
                f"<{2 * len(given['texts'])}f", *sum(map(_row, given["texts"]), ())
            )
            return {"values": values, "dimensions": 2, "num_batches": 1, "num_short_batches": 0}
        assert name == "vectors.put"
        self.put.append(given["values"])
        return None


def _row(text: str) -> tuple[float, float]:
    return float(len(text)), 1.0


def node_of(calls: Calls) -> Api:
    """The parts of the interface that encoders and stores use."""
    made = SimpleNamespace(issuer=calls)
    made.embed = EncodeFunctions(cast(Any, calls)).embed
    made.vectors_put = VectorsFunctions(cast(Any, calls)).vectors_put
    made.vectors_name = lambda: _named("own")
    made.vectors_drop = lambda name: _named(name)
    return cast(Api, made)


async def _named(name: str) -> str:
    return name


def test_they_are_a_list_of_rows_for_whoever_looks() -> None:
    rows = packed([1.0, 2.0], [3.0, 4.0], [5.0, 6.0])
    assert list(rows) == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert (len(rows), rows[1], rows[-1]) == (3, [3.0, 4.0], [5.0, 6.0])
    assert isinstance(rows[1:], PackedVectors)
    assert rows[1:] == [[3.0, 4.0], [5.0, 6.0]]
    assert rows[1:] == packed([3.0, 4.0], [5.0, 6.0])
    assert rows != packed([3.0, 4.0])
    assert rows != "rows"
    with pytest.raises(IndexError):
        rows[3]


def test_lists_are_joined_and_packed_ones_stay_packed() -> None:
    both = joined([packed([1.0, 2.0]), packed([3.0, 4.0])])
    assert isinstance(both, PackedVectors)
    assert both == [[1.0, 2.0], [3.0, 4.0]]
    assert joined([packed([1.0, 2.0]), []]) == [[1.0, 2.0]], "a branch that is not taken has none"
    assert joined([packed([1.0, 2.0]), packed([3.0])]) == [[1.0, 2.0], [3.0]]
    assert joined([["a"], ["b", "c"]]) == ["a", "b", "c"]


async def test_who_is_not_a_store_gets_lists() -> None:
    found = await plain({"rows": packed([1.0, 2.0]), "text": "a"})
    assert type(found["rows"]) is list
    assert json.dumps(found) == '{"rows": [[1.0, 2.0]], "text": "a"}'


def indexing() -> App:
    app = App("indexing", [Engine("embedding", profile=Profile(2)), Engine("vectors")])
    embed = Node("embedding", {"texts": "texts"}, {"rows": "vectors"}, "batchable", name="embed")
    put = Node(
        "vectors", {"texts": "texts", "rows": "vectors"}, {"stored": "done"}, None,
        {"operation": "ingest"}, name="put",
    )  # fmt: skip
    app.update_template([embed, put])
    return app


async def test_from_the_encoder_to_the_store_there_is_no_object_for_each_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five texts in three stages, each of two calls, which an Aggregate gathers for the store."""
    monkeypatch.setattr(encoding, "MAX_IN_FLIGHT", 1)
    given: list[Any] = []

    class Seen(QueryVectors):
        async def add(self, first: int, vectors: Any, texts: Any, order: Any = None) -> None:
            given.append(vectors)
            await super().add(first, vectors, texts)

    calls = Calls()
    api = node_of(calls)
    graph = Graph.optimize(indexing(), {"texts": ["a", "bb", "ccc", "dddd", "eeeee"]})
    assert sum(one.op is Op.EMBEDDING for one in graph.e_graph.primitives.values()) == 3
    runners = {"embedding": EncoderRunner(api, None), "vectors": VectorRunner(Seen(api))}
    await GraphScheduler(graph.e_graph, graph.query, runners, lambda: 0.0).run()
    assert [type(one) for one in given] == [PackedVectors]
    assert calls.put == [packed(*([float(n), 1.0] for n in range(1, 6))).values]


async def test_functions_and_clients_get_lists() -> None:
    """A tool and a growth read vectors, and the query's result has them."""
    seen: list[type] = []

    def read(rows: Any) -> str:
        seen.append(type(rows))
        return "read"

    def pick(rows: Any) -> Growth:
        seen.append(type(rows))
        return Growth([Node("tool", {"rows": "vectors"}, {"more": "text"}, None,
                            {"function": "again"}, name="again")])  # fmt: skip

    functions = {"read": read, "again": lambda rows: str(seen.append(type(rows)))}
    engines = [
        Engine("embedding"),
        Engine("tool", config={"functions": functions}),
        Engine("growth", config={"functions": {"pick": pick}}),
    ]
    app = App("reads", engines)
    rows = {"rows": "vectors"}
    app.update_template(
        [
            Node("embedding", {"text": "text"}, rows, name="embed"),
            Node("tool", rows, {"told": "text"}, None, {"function": "read"}, name="read"),
            Node("growth", rows, {"more": "text"}, None, {"function": "pick"}, name="pick"),
            Node("embedding", {"other": "text"}, {"result": "vectors"}, name="result"),
        ]
    )
    graph = Graph.optimize(app, {"text": "a", "other": "bb"})
    runners = {
        "embedding": EncoderRunner(node_of(Calls()), None),
        "tool": ToolRunner(functions),
    }
    grower = TemplateGrower(app, graph.config, OptPass(), None)
    scheduler = GraphScheduler(graph.e_graph, graph.query, runners, lambda: 0.0, grower=grower)
    results = await scheduler.run()
    assert seen == [list, list, list]
    assert results == {"told": "read", "more": "None", "result": [[2.0, 1.0]]}
    assert type(results["result"]) is list
    assert app.results == {
        "told": ValueType.TEXT,
        "more": ValueType.TEXT,
        "result": ValueType.VECTORS,
    }


async def test_the_kept_results_of_a_query_are_lists(tmp_path: Path) -> None:
    app = App("rows", [Engine("tool", config={"functions": {"rows": lambda text: [[1.0, 2.0]]}})])
    app.update_template(
        [Node("tool", {"text": "text"}, {"rows": "vectors"}, None, {"function": "rows"}, name="f")]
    )

    async def main(api: Any) -> Any:
        asked = run_query(api, app, {"text": "a"}, name=QueryId("q"))
        return type((await asked)["rows"]).__name__

    kept = KeptQueries(tmp_path, KeptQueriesConfig())
    async with LocalNode(kept_queries=kept) as node:
        assert [await node.run(main) for _ in range(2)] == ["list", "list"]


async def test_a_query_sends_no_more_texts_at_once_than_its_tenant_may_have_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of more chunks than an encoder takes of a tenant at a time was always refused."""
    monkeypatch.setattr(encoding, "MAX_IN_FLIGHT", 5)
    in_flight, most = 0, 0

    class Slow(Calls):
        async def ask(self, name: str, **given: Any) -> Any:
            nonlocal in_flight, most
            num = len(given["texts"])
            in_flight += num if name == "encoders.embed" else 0
            most = max(most, in_flight)
            for _ in range(3):
                await asyncio.sleep(0)
            in_flight -= num if name == "encoders.embed" else 0
            return await super().ask(name, **given)

    calls = Slow()
    texts = ["a" * (number + 1) for number in range(23)]
    graph = Graph.optimize(indexing(), {"texts": texts})
    api = node_of(calls)
    runners = {"embedding": EncoderRunner(api, None), "vectors": VectorRunner(QueryVectors(api))}
    await GraphScheduler(graph.e_graph, graph.query, runners, lambda: 0.0).run()
    assert b"".join(calls.put) == packed(*([float(len(one)), 1.0] for one in texts)).values
    assert (most, in_flight) == (5, 0), "stages of two texts, and the last of one"
