"""What optimising and growing cost grows with the graph, and no faster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from workflow_growths import counted
from workflow_lines import with_num_lines

from quire.core.errors import InvalidArgument
from quire.programs.workflow import App, Engine, Graph, Node, OptPass, Profile
from quire.programs.workflow.applications import contextual_retrieval
from quire.programs.workflow.durable import Journal, KeptRecord, QueryId
from quire.programs.workflow.execution.growing import TemplateGrower
from quire.programs.workflow.execution.recording import NO_RECORD
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.runners.calls import prompt_text
from quire.programs.workflow.runners.local import ToolRunner
from quire.programs.workflow.speculation import Experience


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


def reading(out: str = "text", annotation: Any = None, **config: Any) -> App:
    app = App("reading", [Engine("llm")])
    given = {"prompt": "{question} {texts}", **config}
    inputs = {"question": "text", "texts": "texts"}
    app.update_template([Node("llm", inputs, {"out": out}, annotation, given, name="read")])
    return app


@pytest.mark.parametrize(
    "app",
    [
        reading("texts", "batchable"),
        reading(synthesis="refine", refine_prompt="{texts} {answer}"),
        reading(synthesis="tree", combine_prompt="{answers}"),
    ],
    ids=["each", "refine", "tree"],
)
def test_a_graph_that_is_too_large_is_refused_before_it_is_made(app: App) -> None:
    def refused(num: int) -> int:
        query = {"question": "Who?", "texts": ["a"] * num}

        def optimize() -> None:
            with pytest.raises(InvalidArgument, match="read: the graph has more than 4096 prim"):
                Graph.optimize(app, query)

        return with_num_lines(optimize)[1]

    assert refused(80_000) < 1.5 * refused(8_000), "what no graph may have was made"


def test_a_long_list_is_one_part_of_its_prompt() -> None:
    app = reading(last_first=True)
    for num, num_parts in ((1024, 2049), (1025, 3)):
        texts = [f"t{n}" for n in range(num)]
        graph = Graph.optimize(app, {"question": "Who?", "texts": texts})
        prefill = graph.p_graph.primitives["read.prefill"]
        assert len(prefill.parts) == num_parts
        inputs = {name: ref.take(graph.query[ref.port]) for name, ref in prefill.inputs.items()}
        assert prompt_text(prefill, inputs) == "Who? " + "\n".join(reversed(texts))


@pytest.mark.parametrize("synthesis", ["refine", "tree"])
def test_a_list_that_many_calls_read_is_one_part_of_each_prompt(synthesis: str) -> None:
    app = App("asking", [Engine("llm")])
    config = {
        "prompt": "{texts} {asked}",
        "refine_prompt": "{answer} {texts} {asked}",
        "combine_prompt": "{answers} {asked}",
        "synthesis": synthesis,
        "context": "texts",
        "last_first": True,
    }
    inputs = {"texts": "texts", "asked": "texts"}
    app.update_template([Node("llm", inputs, {"out": "text"}, None, config, name="read")])
    asked = [f"a{n}" for n in range(128)]
    for num, num_parts in ((128, 257), (129, 3)):
        graph = Graph.optimize(app, {"texts": ["t"] * num, "asked": asked})
        prefill = graph.p_graph.primitives["read.0.prefill"]
        assert len(prefill.parts) == num_parts
        inputs_of = {name: ref.take(graph.query[ref.port]) for name, ref in prefill.inputs.items()}
        assert prompt_text(prefill, inputs_of) == "t " + "\n".join(reversed(asked))


def test_a_prompt_that_names_long_lists_many_times_is_refused() -> None:
    query = {"question": "Who?", "texts": ["a"] * 1024}
    with pytest.raises(InvalidArgument, match=r"prompt has 1\d{4} parts .* at most 16384 are al"):
        Graph.optimize(reading(prompt="{question}" + "{texts}" * 9), query)
    Graph.optimize(reading(prompt="{question}" + "{texts}" * 7), query)


def test_long_prompts_of_many_calls_are_refused() -> None:
    app = reading(
        prompt="{texts}" + " {question}" * 200,
        synthesis="tree",
        combine_prompt="{answers}",
    )
    Graph.optimize(app, {"question": "Who?", "texts": ["a"] * 10})
    with pytest.raises(InvalidArgument, match="prompt has 401 parts, and there are 1000 calls"):
        Graph.optimize(app, {"question": "Who?", "texts": ["a"] * 1000})


class Kept:
    """What ``Journal`` uses of an ``Api``: everything is kept, and nothing was."""

    @property
    def issuer(self) -> Kept:
        return self

    async def ask(self, name: str, **arguments: Any) -> Any:
        return {"number": 1, "frames": []} if name == "queries.open" else None


async def looped(num_rounds: int, is_kept: bool, speculates: bool = False) -> dict[str, Any]:
    """The result of a loop of ``num_rounds``."""
    app = counted(num_rounds + 1, pure=True, max_rounds=num_rounds)
    passes = OptPass().speculating() if speculates else None
    graph = Graph.optimize(app, {"text": "x"}, passes=passes)
    grower = TemplateGrower(app, graph.config, graph.passes, graph.cache)
    runners: dict[str, Any] = {"tool": ToolRunner(app.engines["tool"].functions)}
    record: Any = NO_RECORD
    if is_kept:
        record = KeptRecord(await Journal.opened(Kept(), "loop", QueryId("q")))  # type: ignore[arg-type]
    scheduler = GraphScheduler(
        graph.e_graph, graph.query, runners, lambda: 0.0, grower=grower, record=record,
        experience=Experience() if speculates else None,
    )  # fmt: skip
    return await scheduler.run()


@pytest.mark.parametrize(("is_kept", "speculates"), [(False, False), (True, False), (False, True)])
def test_ten_times_the_rounds_of_a_loop_take_ten_times_the_steps(
    is_kept: bool, speculates: bool
) -> None:
    num_lines: list[int] = []
    for num_rounds in (10, 100):
        loop = looped(num_rounds, is_kept, speculates)
        result, num = with_num_lines(lambda: asyncio.run(loop))  # noqa: B023
        assert result == {"answer": "x" * (num_rounds + 1)}
        num_lines.append(num)
    assert num_lines[1] < 11 * num_lines[0]
