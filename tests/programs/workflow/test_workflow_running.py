"""Queries as programs over the real controller and a model that answers by a script."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from programs_node import level
from workflow_expansion import QUESTION, EachStep, answer, expansion, upper

from quire.core.actions import Action
from quire.core.calls import Issue, SetQueueDepth
from quire.core.commands import Decode
from quire.core.errors import InvalidArgument, ProgramCancelled, ProgramFailed
from quire.core.events import Called, Event
from quire.core.ids import EngineId, QueueId
from quire.programs.workflow import (
    App,
    Engine,
    Graph,
    GraphCache,
    Node,
    OptPass,
    PrimitiveStep,
    StepLog,
    workflow,
)
from quire.programs.workflow.running import run_query
from quire.testing import FakeEngine, FakeTokenizer, LocalNode, ScriptedModel, fake_pool
from quire.testing.local_node import scripted_node

NUM_TOKENS = 4


def node() -> LocalNode:
    return scripted_node(answer, page_size=4)


@pytest.mark.parametrize(
    "names", [[], ["prune"], ["prune", "prefill"], ["pipeline"], ["prune", "prefill", "pipeline"]]
)
@pytest.mark.parametrize(
    ("last_first", "read"), [(False, 'A, B, C", D'), (True, 'D, C", A, B')], ids=["first", "last"]
)
async def test_a_model_sees_the_same_prompts_by_every_subset(
    names: list[str], last_first: bool, read: str
) -> None:
    seen: list[str] = []

    def noted(prompt: str) -> str:
        seen.append(prompt)
        return answer(prompt)

    program = workflow(expansion(), OptPass(names))
    async with scripted_node(noted, page_size=4) as local:
        query = json.dumps({"question": QUESTION})
        config = json.dumps({"last": {"last_first": last_first}})
        assert await local.run(program, query, config) == {"answer": "Kabo."}
        assert (await level(local))["held"] == 0
    whole = (
        "<|system|>Be short.<|end|><|user|>The question is Who is the baker? "
        f"Read {read}<|end|><|assistant|>"
    )
    assert whole in seen
    assert f"<|user|>Expand: {QUESTION}<|end|><|assistant|>" in seen


async def test_a_prefix_is_computed_while_the_elements_come() -> None:
    log = StepLog()
    cache = GraphCache()

    async def main(api: Any) -> Any:
        query = {"question": QUESTION}
        return await run_query(api, expansion(), query, cache=cache, watcher=log)

    async with node() as local:
        assert await local.run(main) == {"answer": "Kabo."}
    ended = [step.primitive.id for step in log.steps]
    assert ended.index("last.prefill.0") < ended.index("expand.decode.2")
    assert {step.primitive.id for step in log.steps} >= {"last.prefill.2", "last.prefill"}
    assert cache.num_misses == 1


async def test_the_beginning_of_a_prompt_is_computed_before_its_end_is_known() -> None:
    async with node() as local:
        num_prefilled: list[int] = []

        def note(step: PrimitiveStep) -> None:
            if step.primitive.id == "last.prefill.0":
                (row,) = local.controller.processes()
                num_prefilled.append(row.num_prefilled_tokens)

        async def main(api: Any) -> Any:
            return await run_query(api, expansion(), {"question": QUESTION}, watcher=EachStep(note))

        await local.run(main)
    assert len(num_prefilled) == 1
    assert num_prefilled[0] >= len("Be short.The question is Who is the baker? Read ")


@pytest.mark.parametrize(("max_tokens", "names"), [(NUM_TOKENS, None), (256, [])])
async def test_a_query_inside_a_program_leaves_nothing_behind(
    max_tokens: int, names: list[str] | None
) -> None:
    """Whether it fails, with a prompt half computed, or not; a call frees its pages when it has its
    answer."""
    queues: list[int] = []
    async with node() as local:

        async def main(api: Any) -> Any:
            def note(step: PrimitiveStep) -> None:
                queues.append(local.controller.statistics().num_queues)

            app, config = expansion(), {"expand": {"max_tokens": max_tokens}}
            query, passes = {"question": QUESTION}, OptPass(names)
            with suppress(InvalidArgument):
                await run_query(api, app, query, config, passes=passes, watcher=EachStep(note))
            await local.idle()  # a queue closes when its last command has been answered
            return await level(local)

        left = await local.run(main)
    assert (left["queues"], left["held"]) == (0, 0)
    assert max(queues) == (2 if names is None else 1)


async def test_a_query_is_a_program_of_the_form_workflow() -> None:
    program = workflow(expansion())
    assert program.form == "workflow"
    assert [one.name for one in program.parameters] == ["query", "config"]
    async with node() as local:
        local.hold = True
        connect = local.connect(program.name, form=program.form)
        running = local.launch(program, json.dumps({"question": QUESTION}), connect=connect)
        while (await snapshot(local))["queues"] < 2:
            await asyncio.to_thread(lambda: None)  # the graph is built in a thread
        assert [(row.name, row.form) for row in local.controller.processes()] == [
            ("expansion", "workflow")
        ]
        running.cancel()
        local.hold = False
        with pytest.raises(ProgramCancelled):
            await running.result()
        assert (await level(local))["held"] == 0


async def snapshot(local: LocalNode) -> dict[str, int]:
    return {"queues": local.controller.statistics().num_queues}


@pytest.mark.parametrize(
    ("query", "config", "message"),
    [
        ({}, {}, "expansion: the input 'question' is missing"),
        ({"question": QUESTION}, {"last": {"temperature": 1}}, "last has no 'temperature'"),
        ({"question": QUESTION}, {"expand": {"max_tokens": NUM_TOKENS}}, "raise max_tokens"),
    ],
)
@pytest.mark.parametrize("names", [[], ["prune", "pipeline"]])
async def test_a_failed_query_says_why_and_holds_nothing(
    query: dict[str, Any], config: dict[str, Any], message: str, names: list[str]
) -> None:
    async with node() as local:
        program = workflow(expansion(), OptPass(names))
        with pytest.raises(ProgramFailed, match=message):
            await local.run(program, json.dumps(query), json.dumps(config))
        assert (await level(local))["held"] == 0


async def test_a_model_that_is_not_served_is_named() -> None:
    app = App("app", [Engine("llm", config={"model": "other"})])
    config = {"prompt": "{question}"}
    ask = Node("llm", {"question": "text"}, {"answer": "text"}, None, config, name="ask")
    app.update_template([ask])
    async with node() as local:
        with pytest.raises(ProgramFailed, match="names the model 'other'; the node serves fake"):
            await local.run(workflow(app), json.dumps({"question": QUESTION}))


async def test_the_light_model_is_the_one_with_the_fewest_parameters() -> None:
    app = App("app", [Engine("llm"), Engine("llm", name="light", config={"light": True})])
    config = {"prompt": "{question}"}
    app.update_template(
        [
            Node(engine, {"question": "text"}, {f"of_{engine}": "text"}, None, config, name=engine)
            for engine in app.engines
        ]
    )
    tokenizer = FakeTokenizer()
    engines = {
        EngineId(name): FakeEngine(
            fake_pool(num_blocks=1024),
            model=name,
            script=ScriptedModel(lambda prompt, name=name: f"{name}<|end|>", tokenizer),
            num_parameters=size,
            adapters=["tuned"] if name == "small" else [],
        )
        for name, size in (("large", 9), ("small", 2), ("middle", 4))
    }
    async with LocalNode(engines, tokenizer=tokenizer) as local:
        found = await local.run(workflow(app), json.dumps({"question": QUESTION}))
    assert found == {"of_llm": "large", "of_light": "small"}


def test_the_graph_of_the_expansion_is_pipelined() -> None:
    graph = Graph.optimize(expansion(), {"question": QUESTION}).e_graph
    assert "work.2" in graph.primitives


async def test_each_command_has_the_depth_of_the_primitive_that_it_serves() -> None:
    app = expansion()
    graph = Graph.optimize(app, {"question": QUESTION}).e_graph
    async with node() as local:
        served: list[tuple[int, int]] = []
        places: dict[QueueId, tuple[int, int]] = {}
        post = local.harness.post

        def noted(event: Event) -> list[Action]:
            match event:
                case Called(call=SetQueueDepth() as call):
                    places[call.queue] = (call.depth, call.invocation)
                case Called(call=Issue() as call):
                    if any(isinstance(one, Decode) for one in call.commands):
                        served.append(places[call.queue])
            return post(event)

        local.harness.post = noted  # type: ignore[method-assign]
        await local.run(workflow(app), json.dumps({"question": QUESTION}))
    prefills = ["expand.prefill", "last.prefill", *(f"last.prefill.{n}" for n in range(3))]
    wanted = {(one.depth, one.number) for one in map(graph.primitives.__getitem__, prefills)}
    assert set(served) == wanted


def asked_each() -> App:
    """A model is asked about each of several texts, and a tool works on each answer."""
    app = App("each", [Engine("llm"), Engine("tool", config={"functions": {"upper": upper}})])
    config = {"prompt": "{question} {items}", "answer_after": "Answer:"}
    inputs = {"question": "text", "items": "texts"}
    ask = Node("llm", inputs, {"queries": "texts"}, "batchable", config, name="ask")
    work = Node(
        "tool", {"queries": "texts"}, {"answers": "texts"}, "batchable", {"function": "upper"},
        name="work",
    )  # fmt: skip
    ask >> work
    app.update_template([ask, work])
    return app


@pytest.mark.parametrize("names", [[], ["pipeline"], None])
async def test_a_batchable_model_answers_for_each_element(names: list[str] | None) -> None:
    def of_item(prompt: str) -> str:
        item = prompt.removesuffix("<|end|><|assistant|>")[-1]
        return f"Answer: about {item}<|end|>"

    query = json.dumps({"question": "What is", "items": ["a", "b", "c"]})
    async with scripted_node(of_item, page_size=4) as local:
        found = await local.run(workflow(asked_each(), OptPass(names)), query)
        assert found == {"answers": ["ABOUT A", "ABOUT B", "ABOUT C"]}
        assert (await level(local))["held"] == 0
