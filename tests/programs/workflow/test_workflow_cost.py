"""What optimising costs grows with the graph, and no faster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from quire.programs.workflow import App, Graph, Profile
from quire.programs.workflow.applications import contextual_retrieval


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


def with_num_lines(call: Callable[[], Graph]) -> tuple[Graph, int]:
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
        graph = call()
    finally:
        sys.settrace(before)
    return graph, num_lines


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
