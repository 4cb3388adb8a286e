"""What no query could change is refused with the template: each component is built once."""

from __future__ import annotations

from typing import Any

import pytest
from workflow_apps import SCHEMA, advanced, engines

from quire.core.errors import InvalidArgument
from quire.programs.workflow import App, Engine, Graph, Node


def ask(out: str = "text", **config: Any) -> Node:
    inputs = {"question": "text", "read": "texts"}
    given = {"prompt": "{question} {read}", **config}
    return Node("llm", inputs, {"answer": out}, None, given, name="ask")


def asked_by(schema: Any) -> Node:
    return ask("texts", schema=schema)


def cut(**config: Any) -> Node:
    return Node("chunker", {"files": "documents"}, {"a": "texts", "b": "texts"}, None, config,
                name="cut")  # fmt: skip


def find(**config: Any) -> Node:
    given = {"operation": "search", **config}
    return Node("vectors", {"wanted": "vectors"}, {"found": "texts"}, None, given, name="find")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (ask(synthesis="map"), "ask: synthesis is 'map': use one of one_shot, refine, tree"),
        (ask(synthesis="refine"), "ask: refine_prompt is missing"),
        (ask(synthesis="refine", refine_prompt="{read}"), "refine_prompt does not use {answer}"),
        (ask(synthesis="tree", combine_prompt="{question}"), "does not use {answers}"),
        (ask(synthesis="tree", combine_prompt="{answers}", context="question"), "must name one of"),
        (ask(max_tokens=0), "ask: max_tokens is 0: give 1 or more"),
        (ask(max_tokens="9"), "ask: max_tokens is '9': give an integer"),
        (ask(separator=3), "ask: separator is 3: give a text"),
        (asked_by({"type": "object"}), "ask: schema is {'type': 'object'}: this release reads"),
        (asked_by({**SCHEMA, "minItems": -1}), "schema has minItems -1: give an integer, 0 or"),
        (asked_by({**SCHEMA, "minItems": True}), "schema has minItems True: give an integer"),
        (asked_by({**SCHEMA, "maxItems": 3.5}), "schema has maxItems 3.5: give an integer"),
        (asked_by({**SCHEMA, "minItems": 4}), "at least 4 and at most 3 elements: turn minItems"),
        (asked_by({**SCHEMA, "maxItems": 5000}), "maxItems 5000: ask for at most 1024 elements"),
        (cut(chunk_size=0), "cut: chunk_size is 0: give 1 or more"),
        (cut(chunk_size=8, overlap=8), "cut: overlap is 8 of chunks of 8 tokens: give less"),
        (cut(neighbours=99), "cut: neighbours is 99: give at most 16"),
        (find(), "find: operation is 'search', and nothing is ingested into 'vectors' before"),
    ],
)
def test_a_component_that_no_query_can_build(node: Node, message: str) -> None:
    app = App("app", engines())
    with pytest.raises(InvalidArgument) as caught:
        app.update_template([node])
    assert message in caught.value.message
    assert app.nodes == (), "it became the template all the same"


def test_a_schema_of_many_properties_is_shown_in_part() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(10_000)}}
    with pytest.raises(InvalidArgument) as caught:
        App("app", engines()).update_template([asked_by(schema)])
    assert len(caught.value.message) < 300


def test_a_query_may_ask_for_no_more_elements_than_a_template() -> None:
    schema = {**SCHEMA, "minItems": 100_000, "maxItems": 100_000}
    query = {"question": "Who?", "documents": [{"name": "a", "text": "b c"}]}
    with pytest.raises(InvalidArgument, match="minItems 100000: ask for at most 1024"):
        Graph.optimize(advanced(), query, {"expand": {"schema": schema}})


def test_components_that_make_too_much_together() -> None:
    schema = {**SCHEMA, "minItems": 1024, "maxItems": 1024}
    asked = Node("llm", {"question": "text"}, {"read": "texts"}, None,
                 {"prompt": "{question}", "schema": schema}, name="asked")  # fmt: skip
    config = {"prompt": "{read}", "synthesis": "refine", "refine_prompt": "{read} {answer}"}
    first, second = (
        Node("llm", {"read": "texts"}, {name: "text"}, None, config, name=name)
        for name in ("first", "second")
    )
    app = App("app", engines())
    app.update_template([asked, first])
    with pytest.raises(InvalidArgument, match="second: the graph has more than 4096 primitives"):
        app.update_template([asked, first, second])


def test_effects_whose_order_follows_from_data_need_no_other() -> None:
    functions = {"f": lambda **given: "x"}
    app = App("app", [Engine("tool", config={"functions": functions})])
    config = {"function": "f", "effects": ["mail"]}
    first = Node("tool", {"a": "text"}, {"b": "text"}, None, config, name="first")
    between = Node("tool", {"b": "text"}, {"c": "text"}, None, {"function": "f"}, name="between")
    last = Node("tool", {"c": "text"}, {"d": "text"}, None, config, name="last")
    app.update_template([last, between, first])
    apart = Node("tool", {"a": "text"}, {"e": "text"}, None, config, name="apart")
    with pytest.raises(InvalidArgument, match=r"same thing.*write (.* >> apart|apart >>)"):
        app.update_template([last, between, first, apart])
    assert [node.name for node in app.nodes] == ["first", "between", "last"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Engine("tool", config={"functions": [len]}), "give a mapping of names to funct"),
        (lambda: App("app", ["llm"]), "app: 'llm' is among the engines: give a list of Engine"),
        (lambda: App("app", engines()).update_template(ask()), "is <Node ask>: give a list of No"),
        (lambda: App("app", engines()).update_template(["ask"]), "['ask']: give a list of Node"),
        (
            lambda: Graph.optimize(advanced(), "Who?"),
            "the query is 'Who?': give its inputs by name (documents, question)",
        ),
        (lambda: Engine("llm", profile=3), "engine 'llm': profile is 3: give a Profile"),
        (
            lambda: Node("llm", {}, {"a": "text"}, None, ["prompt"], name="ask"),
            "ask: config is ['prompt']: give a mapping",
        ),
    ],
)
def test_settings_of_another_type_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert message in caught.value.message
