"""Pipelines of Haystack as applications. ``pipelines`` has what Haystack 3.4 dumps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from programs_facts import FACTS, node_with

from quire.core.errors import InvalidArgument
from quire.core.ids import TenantId
from quire.programs.workflow import App, Graph, Node, find_application, workflow
from quire.programs.workflow.engines.endpoint import Endpoint
from quire.programs.workflow.imports.jinja_prompts import read_template
from quire.testing import FakeEncoder

PIPELINES = Path(__file__).parent / "pipelines"
INDEX, ASK = PIPELINES / "index.yaml", PIPELINES / "ask.yaml"
QUERY = {
    "documents": [{"name": "a.md", "text": "word " * 500}], "text": "Who?", "question": "Who?"
}  # fmt: skip


LOOP = "{% for d in documents %}{{ d.content }}{% endfor %}"


def by_name(app: App) -> Mapping[str, Node]:
    return {node.name: node for node in app.nodes}


def test_two_pipelines_become_one_application() -> None:
    app = find_application(f"{INDEX}+{ASK}")
    nodes = by_name(app)
    assert app.name == "ask"
    assert set(nodes) == {
        "converter", "splitter", "embedder", "writer", "text_embedder", "retriever", "llm"
    }  # fmt: skip
    assert nodes["splitter"].config == {"chunk_size": 200, "overlap": 20}
    assert nodes["retriever"].config == {"operation": "search", "top_k": 3}
    assert nodes["retriever"] in nodes["writer"].before, "what is written is found"
    batched = {name for name, node in nodes.items() if node.annotation == "batchable"}
    assert batched == {"embedder", "writer"}
    assert nodes["llm"].config == {
        "prompt": "Given these documents:\n\n- {retriever_documents}\n\nQuestion: {question}",
        "separator": "\n\n- ", "system": "You answer shortly.", "max_tokens": 64,
    }  # fmt: skip
    assert app.query_inputs == {"documents": "documents", "text": "text", "question": "text"}
    assert app.results == {"answer": "text"}
    graph = Graph.optimize(app, QUERY)
    assert graph.sizes["splitter_documents"] == 3
    assert "text_embedder" not in graph.e_graph.ancestors["writer"]
    assert "writer" in graph.e_graph.ancestors["retriever"]


def test_a_generator_with_an_address_is_asked_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"api_base_url": "http://x/v1", "timeout": 5.0, "max_retries": 1}
    app = find_application(changed(tmp_path, parameters("llm", **given)))
    assert app.engines["llm_llm"].endpoint == Endpoint(
        "http://x/v1", "gpt-4o-mini", "OPENAI_API_KEY", 5.0, 1
    )
    assert by_name(app)["llm"].engine == "llm_llm"
    assert "gpt-4o-mini" not in caplog.text
    find_application(f"{INDEX}+{ASK}")
    assert "llm: the node's own model is used in place of gpt-4o-mini" in caplog.text
    for wrong, message in (
        ({"api_base_url": "x"}, "base_url is 'x': give http"),
        ({**given, "api_key": {"type": "token"}}, "name one environment variable"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            find_application(changed(tmp_path, parameters("llm", **wrong)))


def test_messages_are_read_as_older_versions_write_them(tmp_path: Path) -> None:
    def change(found: Any) -> None:
        for one in found["components"]["prompt_builder"]["init_parameters"]["template"]:
            one["_role"], one["_content"] = one.pop("role"), one.pop("content")

    older, newer = find_application(changed(tmp_path, change)), find_application(f"{INDEX}+{ASK}")
    assert by_name(older)["llm"].config == by_name(newer)["llm"].config


@pytest.mark.e2e
async def test_the_imported_application_answers() -> None:
    node = node_with(embedder=FakeEncoder(dimensions=128))
    question, (_, wanted) = next(iter(FACTS.questions.items()))
    query = {
        "documents": [{"name": "a.md", "text": "\n".join(FACTS.passages)}],
        "text": question, "question": question,
    }  # fmt: skip
    config = {"splitter": {"chunk_size": 7, "overlap": 0}, "llm": {"answer_after": "Answer:"}}
    await node.start()
    try:
        program = workflow(find_application(f"{INDEX}+{ASK}"))
        arguments = (json.dumps(query), json.dumps(config))
        result = await node.launch(program, arguments, tenant=TenantId("default")).result()
    finally:
        await node.stop()
    assert result["answer"].rstrip(".") == wanted


def changed(tmp_path: Path, change: Callable[[Any], object], source: Path = ASK) -> str:
    """The name of both pipelines, one of them changed."""
    found = yaml.safe_load(source.read_text(encoding="utf-8"))
    change(found)
    made = tmp_path / source.name
    made.write_text(yaml.safe_dump(found), encoding="utf-8")
    files = {INDEX: INDEX, ASK: ASK, source: made}
    return "+".join(str(files[one]) for one in (INDEX, ASK))


def parameters(component: str, **given: Any) -> Callable[[Any], object]:
    return lambda found: found["components"][component]["init_parameters"].update(given)


def renamed(old: str, new: str) -> Callable[[Any], object]:
    def change(found: Any) -> None:
        found["components"][new] = found["components"].pop(old)
        for one in found["connections"]:
            one["receiver"] = one["receiver"].replace(f"{old}.", f"{new}.")

    return change


def typed(component: str, name: str) -> Callable[[Any], object]:
    return lambda found: found["components"][component].update(type=name)


def connected(sender: str, receiver: str) -> Callable[[Any], object]:
    return lambda found: found["connections"].append({"sender": sender, "receiver": receiver})


def added(name: str, like: str) -> Callable[[Any], object]:
    return lambda found: found["components"].update({name: found["components"][like]})


def user(text: str) -> Callable[[Any], object]:
    message = {"role": "user", "content": [{"text": text}]}
    return parameters("prompt_builder", template=[message])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            typed("llm", "haystack.components.agents.agent.Agent"),
            r"component 'llm' is a haystack.components.agents.agent.Agent, which has no",
        ),
        (typed("llm", "os.OpenAIChatGenerator"), "is a os.OpenAIChatGenerator, which has no"),
        (parameters("llm", logprobs=True), "llm has the parameter 'logprobs', which nothing here"),
        (parameters("llm", tools=["x"]), r"llm.tools is \['x'\]; here it can only be None or \[\]"),
        (parameters("llm", generation_kwargs={"top_p": 1}), "generation_kwargs has 'top_p'"),
        (parameters("llm", generation_kwargs={"temperature": 1}), "temperature is 1: models of"),
        (parameters("retriever", filters={"a": 1}), "retriever.filters is"),
        (
            parameters("retriever", document_store={"type": "x.QdrantDocumentStore"}),
            "retriever uses the store x.QdrantDocumentStore; documents come with the query",
        ),
        (
            parameters("retriever", document_store={
                "type": "x.InMemoryDocumentStore", "init_parameters": {"index": "other"}
            }),
            "retriever searches a store that nothing fills",
        ),
        (connected("llm.meta", "answer_builder.meta"), "of llm only replies can be connected"),
        (connected("none.x", "llm.messages"), "names 'none.x', and there is no component 'none'"),
        (connected("none", "llm.messages"), "names 'none', and there is no component 'none': ther"),
        (connected("llm", "prompt_builder"), "names 'prompt_builder' alone: write"),
        (connected("prompt_builder.prompt", "llm.prompt"), "of llm only messages can"),
        (parameters("llm", generation_kwargs=["x"]), r"generation_kwargs is \['x'\]: give"),
        (added("other", "prompt_builder"), "nothing reads the prompt of other: connect"),
        (connected("retriever.documents", "llm.messages"), "llm.messages has two senders"),
        (connected("retriever.documents", "text_embedder.text"), "wait for one another: loops"),
        (connected("llm.replies", "text_embedder.text"), "wait for one another: loops"),
        (user("{{ question }}"), "does not use 'documents', which is connected"),
        (user("{{ documents }}"), r"prompt_builder.documents takes text, and .* gives texts"),
        (
            user("Say:\n {{ question | upper }} {{ documents }}"),
            r"line 2, '\{\{ question \| upper \}\} .*': a prompt has text.*\(Filter\)",
        ),
        (user("{{ question[0] }}" + LOOP), r"'question' is a text of the query: write \{"),
        (user("{% if question %}x{% endif %}"), r"something else \(If\)"),
        (user("{{ question"), "is no template that can be read"),
        (user("x" * 70_000), "has 70000 characters; at most 65536"),
        (
            parameters("prompt_builder", template=[{"role": "user", "content": [{"image": 1}]}]),
            "a message that is not of texts",
        ),
        (
            parameters("prompt_builder", template=[{"role": "assistant", "content": "x"}]),
            "has messages of assistant: a prompt here is one message of the user",
        ),
        (lambda found: found.update(more=1), "has the field 'more', which nothing reads"),
        (lambda found: found.pop("components"), "is no pipeline: it needs 'components'"),
        (lambda found: found["components"]["llm"].pop("type"), "'llm' has no 'type'"),
        (lambda found: found["components"].update(splitter=found["components"].pop("llm")),
         "names 'llm.messages', and there is no component 'llm'"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(
    tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        find_application(changed(tmp_path, change))


def test_an_index_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    for change, message in (
        (parameters("splitter", split_by="sentence"), "split_by is 'sentence'; here it can only"),
        (renamed("writer", "llm"), "two pipelines have a component 'llm'"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            find_application(changed(tmp_path, change, INDEX))


def doubled(num: int) -> str:
    """A file of few lines, each of which repeats the one before twice."""
    lines = ["a0: &x0 [1, 1]", *(f"a{i}: &x{i} [*x{i - 1}, *x{i - 1}]" for i in range(1, num))]
    return "\n".join(lines)


def test_a_store_that_is_written_once_and_named_twice_is_read(tmp_path: Path) -> None:
    """As Haystack writes a pipeline with two components of one store."""
    index, ask = (yaml.safe_load(one.read_text(encoding="utf-8")) for one in (INDEX, ASK))
    ask["components"] |= index["components"]
    ask["connections"] += index["connections"]
    stores = [
        ask["components"][one]["init_parameters"]["document_store"]
        for one in ("writer", "retriever")
    ]
    stores[0]["init_parameters"]["bm25_parameters"] = {}
    ask["components"]["retriever"]["init_parameters"]["document_store"] = stores[0]
    both = tmp_path / "both.yaml"
    both.write_text(yaml.safe_dump(ask), encoding="utf-8")
    assert "&id001" in both.read_text(encoding="utf-8")
    assert set(by_name(find_application(str(both)))) == set(
        by_name(find_application(f"{INDEX}+{ASK}"))
    )


def test_a_component_with_one_socket_may_be_named_alone(tmp_path: Path) -> None:
    def change(found: Any) -> None:
        for one in found["connections"]:
            if one == {"sender": "prompt_builder.prompt", "receiver": "llm.messages"}:
                one.update(sender="prompt_builder", receiver="llm")

    alone, whole = find_application(changed(tmp_path, change)), find_application(f"{INDEX}+{ASK}")
    assert by_name(alone)["llm"].config == by_name(whole)["llm"].config


def test_a_generator_without_a_limit_says_which_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    find_application(changed(tmp_path, parameters("llm", generation_kwargs={"max_tokens": None})))
    assert "llm: an answer has at most 256 tokens: give max_tokens" in caplog.text
    caplog.clear()
    find_application(f"{INDEX}+{ASK}")
    assert "an answer has at most" not in caplog.text


def test_a_file_is_read_within_bounds(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for text, message in (
        ("a: &x [*x]", "has more than 100000 values, with those that its aliases repeat"),
        (doubled(17), "has more than 100000 values, with those that its aliases repeat"),
        ("a: *x", "is no YAML that can be read: found undefined alias"),
        ("a: [", r"is no YAML that can be read: .* at line 1, column"),
        ("[" * 5000, "is no YAML that can be read"),
        ("a: !!python/object/apply:os.system [ls]", "is no YAML that can be read"),
        ("#" * (1 << 20) + "\n", "bytes; at most 1048576 are read"),
        ("[]", "is no pipeline"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidArgument, match=message):
            find_application(str(file))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        find_application(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "template",
    [
        "{% for d in docs %}{{ d.content }}{% endfor %}",
        "A {brace} {{ q }}:\n{% for d in docs -%}\n- {{ d.content }};\n{%- endfor %}\n\nQ: {{ q }}",
        "{% for d in docs %}\n{{ d.content }}\n{% endfor %}\n{{ said[0].text }} {{ other[0] }}",
    ],
)
def test_a_template_says_what_jinja_would(template: str) -> None:
    """With the elements joined by the separator, as a prompt's part does it."""
    values: dict[str, Any] = {
        "q": "Who?", "docs": [{"content": "one"}, {"content": "two"}], "other": ["yes"],
        "said": [{"text": "no"}],
    }  # fmt: skip
    asked = read_template(template, "it")
    prompt = asked.prompt({name: name for name in values})
    docs = (asked.separator or "").join(one["content"] for one in values["docs"])
    found = prompt.format(q="Who?", docs=docs, other="yes", said="no")
    assert found == jinja2.Environment().from_string(template).render(values)


def test_loops_of_one_prompt_have_one_separator() -> None:
    loop = "{{% for d in {0} %}}{1}{{{{ d.content }}}}{{% endfor %}}"
    same = read_template(loop.format("a", "- ") + loop.format("b", "- "), "it")
    assert same.lists == ["a", "b"]
    with pytest.raises(InvalidArgument, match="its loops write different texts between"):
        read_template(loop.format("a", "- ") + loop.format("b", "* "), "it")
    for wrong in ("{% for d in a %}x{% endfor %}", "{% for d in a %}{{ d }}{% endfor %}"):
        with pytest.raises(InvalidArgument, match="a prompt has text"):
            read_template(wrong, "it")
