"""What a template and a query may say, and how a refusal names the field and the remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest
from workflow_apps import DOCUMENTS, QUERY, SCHEMA, advanced, engines

from quire.core.errors import InvalidArgument
from quire.programs.workflow import App, Engine, Graph, Node, Profile


def llm(name: str = "ask", **config: Any) -> Node:
    config = {"prompt": "{question}", **config}
    return Node("llm", {"question": "text"}, {f"{name}_out": "text"}, None, config, name=name)


def each(**config: Any) -> Node:
    config = {"prompt": "{a} {b}", **config}
    inputs = {"a": "texts", "b": "texts"}
    return Node("llm", inputs, {"out": "texts"}, "batchable", config, name="ask")


def refusal(*nodes: Node, app: App | None = None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        (app or App("app", engines())).update_template(nodes)
    return caught.value.message


def test_a_cycle_of_order_is_refused() -> None:
    """The cycle alone is named, in its order."""
    one, two, before, behind = llm("two"), llm("one"), llm("a"), llm("b")
    before >> one >> two >> one >> behind
    found = refusal(before, behind, one, two)
    assert re.match("the components (one -> two -> one|two -> one -> two) wait for one anot", found)


def test_a_cycle_of_data_is_refused() -> None:
    one = Node("llm", {"b": "text"}, {"a": "text"}, None, {"prompt": "{b}"}, name="one")
    two = Node("llm", {"a": "text"}, {"b": "text"}, None, {"prompt": "{a}"}, name="two")
    assert "one -> two -> one wait for one another" in refusal(one, two)


def test_an_unknown_engine_is_named_with_the_known_ones() -> None:
    node = Node("embedder", {"question": "text"}, {"v": "vectors"}, name="embed")
    assert refusal(node) == (
        "embed: unknown engine 'embedder'; the engines are llm, embedding, vectors, chunker, "
        "rerank, condition: name one of them, or add it to the App"
    )


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (llm(prompt="{qestion}"), "ask.prompt: unknown part {qestion}; the parts are question"),
        (llm(prompt="{question"), "ask.prompt: the prompt '{question' cannot be read"),
        (llm(prompt="{question!r}"), "ask.prompt: {question} is not the name of a part"),
        (llm(prompt=""), "ask.prompt: the prompt is empty"),
        (llm(prompt="Hello"), "ask: no prompt uses the input 'question'"),
        (llm(refine_prompt="{answers}"), "ask.refine_prompt: unknown part {answers}"),
        (llm(temperature=1), "the configuration of ask has no 'temperature'; it takes"),
        (llm(schema=SCHEMA), "ask: an output of type texts and a schema belong together"),
        (
            Node("llm", {"q": "text"}, {"o": "texts"}, "splittable", {"prompt": "{q}"}, name="ask"),
            "ask is splittable without a schema: give config 'schema'",
        ),
        (
            Node("llm", {"q": "text"}, {"o": "text"}, "batchable", {"prompt": "{q}"}, name="ask"),
            "ask: a batchable model takes a list of texts and produces one, an answer for each",
        ),
        (each(synthesis="tree"), "ask: a batchable model is asked once for each element and takes"),
        (each(schema=SCHEMA), "ask: a batchable model is asked once for each element and takes no"),
        (each(prompt="{b}"), "ask: no prompt uses the input 'a'"),
        (
            Node("embedding", {"q": "text"}, {"v": "vectors"}, "batchable", name="embed"),
            "embed is batchable but takes no list",
        ),
        (
            Node("embedding", {"q": "texts"}, {"v": "texts"}, name="embed"),
            "embed: an embedding takes text or texts and produces vectors. It is given 'q' (texts, "
            "from the query), and has 'v' (texts) to produce: change the types of its outputs, or",
        ),
        (
            Node("rerank", {"q": "texts"}, {"v": "texts"}, name="rank"),
            "rank: a ranking takes text and texts and produces texts. It is given 'q' (texts, from",
        ),
        (
            Node("vectors", {"v": "vectors"}, {"t": "texts"}, name="find"),
            "find: operation is None: give 'ingest' or 'search'",
        ),
        (
            Node("chunker", {"d": "documents"}, {"t": "texts"}, "splittable", name="cut"),
            "cut: only the output of a model can be splittable",
        ),
        (
            Node("chunker", {"d": "documents"}, {"t": "text"}, name="cut"),
            "cut: a chunker takes documents and produces texts or texts twice. It is given 'd'",
        ),
        (
            Node("chunker", {}, {"t": "texts"}, name="cut"),
            "cut: a chunker takes documents and produces texts or texts twice. It is given "
            "nothing, and has 't' (texts) to produce: change the types of its inputs",
        ),
        (
            Node("llm", {"q": "text"}, {"v": "vectors"}, None, {"prompt": "{q}"}, name="ask"),
            "ask: a model produces text or texts. It is given 'q' (text, from the query), and has",
        ),
        (
            Node(
                "chunker", {"d": "documents"}, {"t": "texts"}, None, {"neighbours": 2}, name="cut"
            ),
            "cut: neighbours is for the text that surrounds each chunk: add a second output",
        ),
        (
            Node("condition", {"t": "text"}, {"b": "boolean"}, name="judge"),
            "judge: a condition needs the text 'equals'",
        ),
    ],
)
def test_a_component_that_can_never_run_is_refused(node: Node, message: str) -> None:
    assert refusal(node).startswith(message)


def test_mismatched_types_name_both_sides() -> None:
    one = llm("one")
    two = Node("rerank", {"one_out": "texts", "q": "text"}, {"o": "texts"}, name="two")
    assert refusal(one, two).startswith("two takes 'one_out' as texts, but one produces it")
    three = Node("embedding", {"question": "texts"}, {"v": "vectors"}, name="three")
    assert refusal(one, three).startswith(
        "three takes 'question' as texts, but one takes it as text"
    )


def test_types_that_do_not_fit_name_where_they_come_from() -> None:
    config = {"operation": "search"}
    found = Node("vectors", {"one_out": "text"}, {"t": "texts"}, None, config, name="find")
    assert refusal(llm("one"), found) == (
        "find: a search of vectors takes vectors and produces texts. It is given 'one_out' (text, "
        "from one), and has 't' (texts) to produce: change the types of its inputs, or take the "
        "output of another component"
    )
    stored = Node("vectors", {"t": "texts", "d": "done"}, {"s": "done"}, None,
                  {"operation": "ingest"}, name="store")  # fmt: skip
    assert "given 't' (texts, from the query) and 'd' (done, from the query)" in refusal(stored)
    waiting = Node("vectors", {"v": "vectors", "d": "done"}, {"t": "text"}, None, config, name="w")
    assert "change the types of its outputs" in refusal(waiting)


def test_what_is_named_twice_or_left_out_is_refused() -> None:
    assert "two components are named 'ask'" in refusal(llm(), llm())
    same = Node("llm", {"q": "text"}, {"ask_out": "text"}, None, {"prompt": "{q}"}, name="b")
    assert "ask and b both produce 'ask_out'" in refusal(llm(), same)
    one, two = llm("one"), llm("two")
    one >> two
    assert refusal(one) == "one >> two: two is not in the template: add it"
    assert "the two in it is another component" in refusal(one, llm("two"))
    with pytest.raises(InvalidArgument, match=r"b.inputs is a tuple: write types by name, as in"):
        Node("llm", ("q",), {"o": "text"}, name="b")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="the right side must be a Node"):
        one >> "two"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "gpu"}, "unknown engine kind 'gpu': use one of llm"),
        ({"kind": "mcp"}, "there is no engine of kind 'mcp': use kind 'tool' with config {'mcp'"),
        ({"kind": "tool", "config": {"mcp": "a", "program": "b"}}, "has mcp and program: give one"),
        ({"kind": "tool", "config": {"mcp": ""}}, "mcp is '': give a name"),
        ({"kind": "tool", "config": {"mcp": "a", "timeout_s": 0}}, "timeout_s is 0: give seconds"),
        ({"kind": "tool", "config": {"mcp": "a", "api_key_env": "KEY"}}, "named by its URL"),
        (
            {"kind": "tool", "config": {"program": "a", "api_key_env": "KEY"}},
            "api_key_env is for mcp: leave it out",
        ),
        (
            {"kind": "tool", "config": {"functions": {"f": str}, "timeout_s": 1}},
            "timeout_s is for mcp or program: leave it out",
        ),
        ({"kind": "search", "config": {"url": "x"}}, "'search' has no 'url'; it takes nothing"),
        ({"kind": "llm", "instances": 2}, "instances belong to the node"),
        ({"kind": "llm", "resources": {"GPU": 2}}, "resources and instances belong to the node"),
        (
            {"kind": "llm", "config": {"dtype": "x"}},
            "engine 'llm' has no 'dtype'; it takes api_key_env, base_url, light",
        ),
        ({"kind": "llm", "config": {"light": 1}}, "light is 1: give true or false"),
        ({"kind": "llm", "config": {"light": True, "model": "a"}}, "true only without a model"),
        ({"kind": "tool"}, "has nothing to call: give one of functions, mcp"),
        ({"kind": "tool", "config": {"functions": {}}}, "'functions' must name at least one"),
    ],
)
def test_an_engine_refuses_what_it_does_not_take(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Engine(**given)


def test_a_tool_takes_the_inputs_by_name() -> None:
    def shout(text: str) -> str:
        return text.upper()

    app = App("app", [Engine("tool", config={"functions": {"shout": shout}})])
    config = {"function": "shout"}
    node = Node("tool", {"reply": "text"}, {"o": "text"}, None, config, name="loud")
    assert refusal(node, app=app).startswith(
        "loud: the function 'shout' cannot be called with the inputs reply (missing a required"
    )
    right = Node("tool", {"text": "text"}, {"o": "text"}, None, config, name="loud")
    app.update_template([right])
    unknown = Node("tool", {"text": "text"}, {"o": "text"}, None, {"function": "f"}, name="loud")
    assert refusal(unknown, app=app).startswith("loud: function is 'f'; the engine has shout")


def test_a_tool_elsewhere_is_named_where_it_has_a_name() -> None:
    files = Engine("tool", config={"mcp": "files"}, name="files")
    app = App("app", [files, Engine("tool", config={"program": "count"}, name="count")])
    node = Node("files", {"q": "text"}, {"o": "text"}, name="read")
    assert refusal(node, app=app) == ("read: function is None: name a tool of the MCP server files")
    config = {"function": "count"}
    node = Node("count", {"q": "text"}, {"o": "text"}, None, config, name="count")
    assert refusal(node, app=app).startswith("count: function is 'count', and its engine is the")
    app.update_template([Node("count", {"q": "text"}, {"o": "text"}, name="count")])


def test_a_profile_finds_the_largest_batch_that_still_gains() -> None:
    """Ayo's Figure 4a: 4 elements in 0.15 s, 16 in 0.45 s; 32 gain nothing more."""
    profile = Profile.of([(1, 0.1), (4, 0.15), (16, 0.45), (32, 0.9)])
    assert profile.max_efficient_batch == 16
    with pytest.raises(InvalidArgument, match="elements rising"):
        Profile.of([(4, 1.0), (2, 1.0)])


@pytest.mark.parametrize(
    ("query", "config", "message"),
    [
        ({"question": "Who?"}, {}, "the input 'documents' is missing"),
        ({**QUERY, "x": 1}, {}, "advanced has no input 'x'; it has"),
        ({**QUERY, "question": ""}, {}, "the input 'question' is '': give a text"),
        ({**QUERY, "documents": []}, {}, "documents has 0 documents: give 1 to 1024"),
        ({**QUERY, "documents": [{"name": "a"}]}, {}, r"documents \[0\] is .*: give"),
        ({**QUERY, "documents": [{"name": "a", "text": " "}]}, {}, r"\('a'\) is empty"),
        ({**QUERY, "documents": [{"name": "a", "text": "\x01"}]}, {}, None),
        (QUERY, {"chunk": {"chunk_size": 0}}, "chunk: chunk_size is 0: give 1 or more"),
        (QUERY, {"chunk": {"overlap": 20}}, "overlap is 20 of chunks of 20 tokens"),
        (QUERY, {"chunk": {"size": 3}}, "the configuration of chunk has no 'size'"),
        (QUERY, {"chunks": {}}, "the configuration of advanced has no 'chunks'; it takes"),
        (QUERY, {"search": {"top_k": "3"}}, "search: top_k is '3': give an integer"),
        (QUERY, {"search": {"top_k": 1025}}, "search: top_k is 1025: give 1 to 1024"),
        (QUERY, {"answer": {"synthesis": "wide"}}, "synthesis is 'wide': use one of one_shot"),
        (QUERY, {"answer": {"refine_prompt": "{best}"}}, r"does not use \{answer\}"),
    ],
)
def test_a_query_is_refused_before_any_work(
    query: dict[str, Any], config: dict[str, Any], message: str | None
) -> None:
    if message is None:  # a control character is a mark, and so a token
        assert Graph.optimize(advanced(), query, config).sizes["chunks"] == 1
        return
    with pytest.raises(InvalidArgument, match=message):
        Graph.optimize(advanced(), query, config)


@pytest.mark.parametrize("synthesis", ["tree", "refine"])
@pytest.mark.parametrize(
    ("inputs", "lists"), [({"a": "texts", "b": "texts"}, "a, b"), ({"a": "text", "b": "text"}, "")]
)
def test_a_synthesis_is_told_which_list_it_goes_through(
    synthesis: str, inputs: dict[str, str], lists: str
) -> None:
    prompts = {"refine_prompt": "{answer} {a} {b}", "combine_prompt": "{answers}"}
    config = {"prompt": "{a} {b}", "synthesis": synthesis, **prompts}
    app = App("app", engines())
    message = rf"ask: context must name one of the inputs of type texts \({lists}\)"
    with pytest.raises(InvalidArgument, match=message):
        app.update_template([Node("llm", inputs, {"answer": "text"}, None, config, name="ask")])


@pytest.mark.parametrize(("last_first", "order"), [(False, [0, 1, 2]), (True, [2, 1, 0])])
def test_an_answer_is_refined_in_the_order_of_the_list(last_first: bool, order: list[int]) -> None:
    prompts = {"prompt": "{found}", "refine_prompt": "{answer} {found}"}
    config = {**prompts, "synthesis": "refine", "last_first": last_first}
    app = App("app", engines())
    app.update_template(
        [Node("llm", {"found": "texts"}, {"answer": "text"}, None, config, name="ask")]
    )
    graph = Graph.optimize(app, {"found": ["x", "y", "z"]})
    made = graph.p_graph.primitives
    read = [made[f"ask.{step}.prefill"].inputs["found"].index for step in range(3)]
    assert read == order


def test_a_search_without_an_order_to_the_ingestion_is_refused() -> None:
    embed = Node("embedding", {"texts": "texts"}, {"vectors": "vectors"}, name="embed")
    config = {"operation": "ingest"}
    ingest = Node(
        "vectors", {"texts": "texts", "vectors": "vectors"}, {"d": "done"}, None, config, name="put"
    )
    find = Node(
        "vectors", {"vectors": "vectors"}, {"found": "texts"}, None, {"operation": "search"},
        name="find",
    )  # fmt: skip
    app = App("app", engines())
    with pytest.raises(InvalidArgument, match=r"put and find work on the same thing.*put >> find"):
        app.update_template([embed, ingest, find])
    with pytest.raises(InvalidArgument, match=r"find: .* nothing is ingested into"):
        app.update_template([embed, find, ingest])
    ingest >> find
    app.update_template([embed, ingest, find])
    assert Graph.optimize(app, {"texts": ["a"]}).sizes == {"texts": 1}


@pytest.mark.parametrize("on_branch", [False, True])
def test_how_many_elements_a_branch_gives_is_certain_on_it_alone(on_branch: bool) -> None:
    def upper(items: list[str]) -> list[str]:
        return [item.upper() for item in items]

    app = App("app", [Engine("llm"), Engine("tool", config={"functions": {"upper": upper}})])
    config = {"equals": "yes"}
    judge = Node("condition", {"text": "text"}, {"flag": "boolean"}, None, config, name="judge")
    config = {"function": "upper"}
    work = Node(
        "tool", {"items": "texts"}, {"done": "texts"}, "batchable", config, name="work", when="flag"
    )
    config = {"prompt": "{done}", "combine_prompt": "{answers}", "synthesis": "tree"}
    when = "flag" if on_branch else None
    ask = Node("llm", {"done": "texts"}, {"answer": "text"}, None, config, name="ask", when=when)
    app.update_template([judge, work, ask])
    query = {"text": "yes", "items": ["a", "b"]}
    primitives = Graph.optimize(app, query).e_graph.primitives
    assert ("ask.combine.decode" in primitives) == on_branch
    assert ("ask" in primitives) != on_branch, "it is built when the number is known"


@pytest.mark.parametrize(
    ("size", "overlap", "most"), [(16, 16, 15), (4000, 3999, 3750), (1, 1, 0), (32, 31, 30)]
)
def test_overlaps_make_the_texts_longer_within_a_bound(size: int, overlap: int, most: int) -> None:
    config = {"chunk": {"chunk_size": size, "overlap": overlap}}
    with pytest.raises(
        InvalidArgument, match=f"is {overlap} of chunks of {size} tokens: give less, at most {most}"
    ):
        Graph.optimize(advanced(), QUERY, config)
    config["chunk"]["overlap"] = most
    Graph.optimize(advanced(), QUERY, config)


def test_what_surrounds_each_chunk_is_as_many_texts_as_chunks_and_bounded() -> None:
    app = App("app", [Engine("chunker"), Engine("llm")])
    cut = Node("chunker", {"files": "documents"}, {"part": "texts", "text": "texts"}, name="cut")
    inputs = {"text": "texts", "part": "texts"}
    config = {"prompt": "{text} {part}"}
    ask = Node("llm", inputs, {"about": "texts"}, "batchable", config, name="ask")
    app.update_template([cut, ask])
    query = {"files": DOCUMENTS}
    graph = Graph.optimize(app, query, {"cut": {"chunk_size": 100, "overlap": 0}}).e_graph
    assert graph.primitives["cut"].config["neighbours"] == 4
    asked = {name: str(ref) for name, ref in graph.primitives["ask.3.prefill"].inputs.items()}
    assert asked == {"text": "cut.around[3]", "part": "cut.out[3]"}
    with pytest.raises(InvalidArgument, match="cut: neighbours is 17: give at most 16"):
        Graph.optimize(app, query, {"cut": {"neighbours": 17}})


def test_a_batchable_model_needs_lists_of_one_length() -> None:
    app = App("app", engines())
    app.update_template([each()])
    with pytest.raises(InvalidArgument, match=r"ask: inputs have these numbers of .*: a 2, b 1; a"):
        Graph.optimize(app, {"a": ["x", "y"], "b": ["z"]})
    query = {"a": ["x", "y"], "b": ["v", "w"]}
    with pytest.raises(InvalidArgument, match="the configuration of ask has no 'synthesis'"):
        Graph.optimize(app, query, {"ask": {"synthesis": "tree"}})
    graph = Graph.optimize(app, query).e_graph
    assert graph.primitives.keys() == {
        "ask.0.prefill", "ask.0.decode", "ask.1.prefill", "ask.1.decode", "ask.all"
    }  # fmt: skip


def test_documents_of_a_kind_that_cannot_be_read_are_refused_by_name() -> None:
    app = App("app", [Engine("parser"), Engine("chunker")])
    parse = Node("parser", {"files": "documents"}, {"read": "documents"}, name="parse")
    chunk = Node("chunker", {"read": "documents"}, {"chunks": "texts"}, name="chunk")
    app.update_template([parse, chunk])
    for name, message in [
        ("a.html", r"'a\.html', whose text is not read yet: use run_query"),
        ("a.pdf", r"\('a\.pdf'\) is a PDF given as text: give it as 'base64'"),
        ("a.docx", r"'a\.docx' is of no known kind: give names that end in \.txt"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            Graph.optimize(app, {"files": [{"name": name, "text": "%PDF"}]})
    assert Graph.optimize(app, {"files": DOCUMENTS}).sizes == {"files": 1, "chunks": 2}


@pytest.mark.parametrize("name", ["", "a/b", "../x", "..", ".", "a\nb", "a\0b", "x" * 257])
def test_an_application_has_a_name_that_can_stand_in_an_address(name: str) -> None:
    with pytest.raises(InvalidArgument, match="clients ask at /v1/workflows/NAME/query"):
        App(name, [])


@pytest.mark.parametrize("name", ["x" * 256, "Größe 2", "a..b", "'; DROP TABLE a; --"])
def test_other_names_are_taken(name: str) -> None:
    assert App(name, []).name == name


def test_names_of_components_and_inputs_are_bounded() -> None:
    """Requests name them, and take no longer ones."""
    longest = "x" * 256
    assert Node("tool", {longest: "text"}, {"o": "text"}, name=longest).name == longest
    for name, given in ((f"{longest}x", "i"), ("ask", f"{longest}x")):
        with pytest.raises(InvalidArgument, match="at most 256 of them"):
            Node("tool", {given: "text"}, {"o": "text"}, name=name)
