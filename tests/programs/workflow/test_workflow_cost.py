"""What optimising and growing cost grows with the graph, and no faster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import pytest
from workflow_growths import counted

from quire.programs.workflow import App, Graph, Profile
from quire.programs.workflow.applications import contextual_retrieval
from quire.programs.workflow.durable import Journal, KeptRecord, QueryId
from quire.programs.workflow.execution.growing import TemplateGrower
from quire.programs.workflow.execution.recording import NO_RECORD
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.runners.local import ToolRunner

T = TypeVar("T")


def profiled() -> App:
    """Embedding and situating are cut into stages of sixteen texts."""
    made = contextual_retrieval()
    engines = [
        replace(one, profile=Profile(16)) if one.name == "embedding" else one
        for one in made.engines.values()
    ]
    app = App(made.name, engines)
    app.update_template(list(made.nodes))
    return app


def with_num_lines(call: Callable[[], T]) -> tuple[T, int]:
    """What ``call`` returns, and how many lines of workflows' modules it runs, a comprehension's
    once an element."""
    num_lines = 0

    def in_frame(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return in_frame

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        return in_frame if "programs/workflow" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return result, num_lines


def test_ten_times_the_chunks_take_ten_times_the_steps() -> None:
    app, sizes = profiled(), list[tuple[int, int]]()
    for num_chunks in (60, 600):
        text = " ".join(f"w{number}" for number in range(226 * num_chunks))
        query = {"question": "Who?", "documents": [{"name": "a", "text": text}]}
        graph, num_lines = with_num_lines(partial(Graph.optimize, app, query))
        sizes.append((len(graph.e_graph.primitives), num_lines))
    (few, few_lines), (many, many_lines) = sizes
    assert many > 9 * few
    assert many_lines < 1.1 * many / few * few_lines


class Kept:
    """What ``Journal`` uses of an ``Api``: everything is kept, and nothing was."""

    @property
    def issuer(self) -> Kept:
        return self

    async def ask(self, name: str, **arguments: Any) -> Any:
        return {"number": 1, "frames": []} if name == "queries.open" else None


async def looped(num_rounds: int, is_kept: bool) -> dict[str, Any]:
    """The result of a loop of ``num_rounds``."""
    app = counted(num_rounds + 1, max_rounds=num_rounds)
    graph = Graph.optimize(app, {"text": "x"})
    grower = TemplateGrower(app, graph.config, graph.passes, graph.cache)
    runners: dict[str, Any] = {"tool": ToolRunner(app.engines["tool"].functions)}
    record: Any = NO_RECORD
    if is_kept:
        record = KeptRecord(await Journal.opened(Kept(), "loop", QueryId("q")))  # type: ignore[arg-type]
    scheduler = GraphScheduler(
        graph.e_graph, graph.query, runners, lambda: 0.0, grower=grower, record=record
    )
    return await scheduler.run()


@pytest.mark.parametrize("is_kept", [False, True])
def test_ten_times_the_rounds_of_a_loop_take_ten_times_the_steps(is_kept: bool) -> None:
    num_lines: list[int] = []
    for num_rounds in (10, 100):
        result, num = with_num_lines(lambda: asyncio.run(looped(num_rounds, is_kept)))  # noqa: B023
        assert result == {"answer": "x" * (num_rounds + 1)}
        num_lines.append(num)
    assert num_lines[1] < 11 * num_lines[0]
