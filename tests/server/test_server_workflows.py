"""``/v1/workflows``: what the node serves, and queries as programs of their tenants."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import jsonschema_rs
import pytest
from request_log import RequestLines
from scripted_server import RunningServer, running_server

from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import EngineFault, InvalidArgument
from quire.core.ids import TenantId
from quire.programs.workflow import App, Engine, Node, OptPass, Rewritten
from quire.programs.workflow.applications import APPLICATIONS, Applications, find_applications

QUESTION = "Who is the baker?"
DOCUMENTS = [{"name": "a.md", "text": "Kabo is a baker. " * 8}]
QUERY = {"question": QUESTION, "documents": DOCUMENTS}
NAIVE, ADVANCED = "/v1/workflows/naive-rag/query", "/v1/workflows/advanced-rag/query"
KEYS = {name: {"authorization": f"Bearer key-{name}"} for name in ("a", "b")}


class Held:
    """A tool that returns when it is let go."""

    def __init__(self) -> None:
        self.began, self.cancelled = threading.Event(), threading.Event()

    async def wait(self, question: str) -> str:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return question


HELD = Held()


async def faulty(question: str) -> str:
    raise EngineFault(f"cannot do {question}")


def fails(graph: Any, profiles: Any) -> Rewritten:
    raise ValueError("no such edge")


class SeenPass:
    """A pass that counts the graphs it was given."""

    def __init__(self) -> None:
        self.num_seen = 0

    def rule(self, graph: Any, profiles: Any) -> Rewritten:
        self.num_seen += 1
        return Rewritten(graph)


SEEN = SeenPass()


async def same(question: str) -> str:
    return question


def own_passes(rule: Any) -> OptPass:
    passes = OptPass()
    passes.register("mine", rule)
    return passes


def tool_app(name: str, function: Any, passes: OptPass | None = None) -> App:
    app = App(name, [Engine("tool", config={"functions": {"do": function}})], passes=passes)
    config = {"function": "do"}
    node = Node("tool", {"question": "text"}, {"answer": "text"}, None, config, name="do")
    app.update_template([node])
    return app


@pytest.fixture(scope="module")
def keyed() -> Iterator[RunningServer]:
    tenants = [TenantConfig(TenantId(name), (f"key-{name}",)) for name in KEYS]
    apps = {
        "held": tool_app("held", HELD.wait),
        "faulty": tool_app("faulty", faulty),
        "seen": tool_app("seen", same, own_passes(SEEN.rule)),
        "broken": tool_app("broken", same, own_passes(fails)),
    }
    config = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, max_query_bytes=4096)
    with running_server(config, tenants, workflows=Applications.of(apps)) as running:
        yield running


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def fits(value: Any, schema: dict[str, Any]) -> bool:
    return bool(jsonschema_rs.validator_for(schema).is_valid(value))


def test_the_list_has_schemas_that_queries_fit(http: httpx.Client) -> None:
    listed = http.get("/v1/workflows").json()["data"]
    assert [one["name"] for one in listed] == list(APPLICATIONS)
    by_name = {one["name"]: one for one in listed}
    searching, naive = by_name["search-generation"], by_name["naive-rag"]
    assert fits({"question": QUESTION}, searching["query"])
    assert fits({"search": {"top_k": 2}, "answer": {"model": "x"}}, searching["config"])
    assert not fits({"search": {"top_k": 0}}, searching["config"])
    assert fits(QUERY, naive["query"])
    assert fits({"chunk": {"chunk_size": 4, "overlap": 1}}, naive["config"])
    assert fits({"answer": "x"}, naive["results"])
    for wrong in ({"question": QUESTION}, {**QUERY, "more": 1}, {**QUERY, "documents": []}):
        assert not fits(wrong, naive["query"])
    chunk_size = naive["config"]["properties"]["chunk"]["properties"]["chunk_size"]
    assert chunk_size == {"type": "integer", "minimum": 1, "default": 256}
    assert "ingest" not in naive["config"]["properties"], "nothing of it can be changed"


def test_a_query_is_answered_and_is_a_program(http: httpx.Client) -> None:
    body = {"query": QUERY, "client_id": "mine", "priority": 3, "seed": 7}
    response = http.post(NAIVE, json=body).raise_for_status()
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer["results"] == {"answer": "Hello there."}
    assert (answer["object"], answer["workflow"]) == ("workflow.result", "naive-rag")
    assert answer["num_primitives"] == 11
    assert answer["usage"]["num_generated_tokens"] > 0
    program = http.get(f"/v1/programs/{answer['id']}").json()
    assert (program["form"], program["state"]) == ("workflow", "finished")
    assert (program["client_id"], program["priority"], program["seed"]) == ("mine", 3, 7)


def test_a_stream_has_the_primitives_and_the_text_of_the_answer(http: httpx.Client) -> None:
    config = {
        "chunk": {"chunk_size": 4, "overlap": 0},
        "answer": {
            "prompt": "say I think. Answer: {question} {context}", "synthesis": "one_shot"
        },
    }  # fmt: skip
    answer = http.post(NAIVE, json={"query": QUERY, "config": config, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    whole = http.post(NAIVE, json={"query": QUERY, "config": config}).json()  # it is kept now
    first, planned, *others, last = events_of(answer.text)
    assert (first["type"], first["workflow"]) == ("started", "naive-rag")
    assert planned == {"type": "planned", "num_primitives": whole["num_primitives"]}
    assert (last["type"], last["results"]) == ("ended", whole["results"])
    ended = [one["primitive"] for one in others if one["type"] == "primitive.ended"]
    assert len(ended) == planned["num_primitives"]
    assert {"chunk", "search", "answer.decode"} < set(ended)
    texts = [one["text"] for one in others if one["type"] == "delta"]
    assert "".join(texts) == whole["results"]["answer"]
    assert len(texts) > 1
    assert QUESTION.startswith(texts[0]), "what stands before the mark is not told"
    assert all(one["time_s"] >= 0 for one in others if one["type"] == "primitive.ended")
    with_batches = {one["primitive"] for one in others if "num_short_batches" in one}
    assert with_batches == {one for one in ended if one.startswith("embed")}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"query": {"question": "x"}}, "query.documents", "'documents' is missing"),
        ({"query": {**QUERY, "top": 1}}, "query.top", "has no input 'top'"),
        ({"query": {**QUERY, "question": ""}}, "query.question", "give a text"),
        (
            {"query": {**QUERY, "documents": [{"name": "a"}]}},
            "query.documents", "[0] is {'name': 'a'}: give",
        ),
        (
            {"query": {**QUERY, "documents": [{"name": "a.pdf", "text": "x"}]}},
            "query.documents", "give it as 'base64'",
        ),
        ({"query": QUERY, "config": {"none": {}}}, "config.none", "it takes answer, chunk"),
        ({"query": QUERY, "config": {"chunk": {"size": 1}}}, "config.chunk.size", "it takes chunk"),
        ({"query": QUERY, "config": {"chunk": {"chunk_size": 0}}}, "config.chunk.chunk_size", "0"),
        (
            {"query": QUERY, "config": {"search": {"operation": "ingest"}}},
            "config.search.operation", "it takes top_k",
        ),
        (
            {"query": QUERY, "config": {"answer": {"prompt": "{nothing}"}}},
            "config.answer.prompt", "unknown part {nothing}",
        ),
        ({"query": QUERY, "config": {"chunk": 1}}, "config.chunk", "must be an object"),
        ({"query": QUERY, "questions": 1}, "questions", "no such parameter"),
        ({"query": QUERY, "parent": "nobody"}, None, "nobody"),
    ],
)  # fmt: skip
def test_what_no_query_can_be_is_refused_before_any_work(
    http: httpx.Client, body: dict[str, Any], param: str | None, words: str
) -> None:
    before = len(http.get("/v1/programs").json()["data"])
    for stream in (False, True):
        refused = http.post(NAIVE, json={**body, "stream": stream})
        assert refused.status_code in (400, 404)
        error = refused.json()["error"]
        assert (error["param"], words in error["message"]) == (param, True), error
    assert len(http.get("/v1/programs").json()["data"]) == before


LONG = "k" * 100_000
HOSTILE = {
    "deep": b'{"query":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep config": b'{"config":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    "nan": b'{"query":{"question":"x"},"deadline_s":NaN}',
    "infinite": b'{"query":{"question":"x"},"deadline_s":1e999}',
    "digits": b'{"seed":' + b"9" * 5000 + b"}",
    "twice": b'{"query":{},"query":{}}',
    "surrogate": b'{"query":{"question":"\\ud800"}}',
    "long input": json.dumps({"query": {**QUERY, LONG: 1}}).encode(),
    "long component": json.dumps({"query": QUERY, "config": {LONG: {}}}).encode(),
    "long setting": json.dumps({"query": QUERY, "config": {"chunk": {LONG: 1}}}).encode(),
    "long value": json.dumps({"query": QUERY, "config": {"answer": {"synthesis": LONG}}}).encode(),
    "long part": json.dumps(
        {"query": QUERY, "config": {"answer": {"prompt": f"{{{LONG}}}"}}}
    ).encode(),
    "long model": json.dumps({"query": QUERY, "config": {"answer": {"model": LONG}}}).encode(),
    "long parent": json.dumps({"query": QUERY, "parent": LONG}).encode(),
    "parts": json.dumps(
        {"query": QUERY, "config": {"answer": {"prompt": "{question}" * 1000}}}
    ).encode(),
    "documents": json.dumps({"query": {**QUERY, "documents": DOCUMENTS * 2000}}).encode(),
    "whole": b'{"query":{"question":"' + b"x" * (17 << 20) + b'"}}',
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_query_is_refused_in_few_words(http: httpx.Client, case: str) -> None:
    headers = {"content-type": "application/json"}
    refused = http.post(NAIVE, content=HOSTILE[case], headers=headers)
    assert refused.status_code in (400, 404, 413), refused.text[:1000]
    assert len(refused.content) < 40_000
    error = refused.json()["error"]
    assert error["message"]
    assert len(error["param"] or "") <= 200


def test_a_null_of_the_configuration_is_the_default(http: httpx.Client) -> None:
    config = {"chunk": {"chunk_size": None}, "answer": {"answer_after": None, "max_tokens": None}}
    answer = http.post(NAIVE, json={"query": QUERY, "config": config})
    assert answer.json()["results"] == {"answer": "Hello there."}


def test_a_failure_in_the_middle_names_what_the_query_has_met(http: httpx.Client) -> None:
    """The scripted model's answer is no JSON."""
    refused = http.post(ADVANCED, json={"query": QUERY})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["message"].startswith("expand: "), error
    *_, last = events_of(http.post(ADVANCED, json={"query": QUERY, "stream": True}).text)
    assert (last["type"], last["error"]) == ("error", error)


def test_a_document_that_cannot_be_read_is_named_by_its_place_in_the_body(
    http: httpx.Client,
) -> None:
    """It is read when the query runs."""
    pdf = {"name": "a.md", "base64": "JVBERi0xLjQ="}
    query = {**QUERY, "documents": [pdf]}
    error = http.post(NAIVE, json={"query": query}).json()["error"]
    assert (error["param"], "'a.md' is a PDF" in error["message"]) == ("query.documents", True)
    *_, last = events_of(http.post(NAIVE, json={"query": query, "stream": True}).text)
    assert (last["type"], last["error"]) == ("error", error)


def test_a_workflow_that_is_not_served_is_named(keyed: RunningServer) -> None:
    refused = httpx.post(keyed.url + NAIVE, json={"query": QUERY}, headers=KEYS["a"], timeout=60)
    assert refused.status_code == 404
    assert "it serves held, faulty" in refused.json()["error"]["message"]


def test_an_encoder_that_the_node_lacks_is_named_before_any_work() -> None:
    with (
        running_server() as alone,
        httpx.Client(base_url=alone.url, timeout=60) as http,
    ):
        refused = http.post(NAIVE, json={"query": QUERY})
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "model_not_found"
        assert http.get("/v1/programs").json()["data"] == []


@pytest.fixture(scope="module")
def searching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Tenant ``a`` has a directory of its own, ``b`` that of the node."""
    folder = tmp_path_factory.mktemp("texts")
    for owner in ("node", "a"):
        (folder / owner).mkdir()
        text = f"The secret of {owner} is a number."
        (folder / owner / "a.md").write_text(text, encoding="utf-8")
    tenants = [
        TenantConfig(TenantId(name), (f"key-{name}",), search=own)
        for name, own in {"a": str(folder / "a"), "b": None}.items()
    ]
    config = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False)
    app = App("find", [Engine("search")])
    app.update_template(
        [Node("search", {"words": "text"}, {"found": "texts"}, None, {"top_k": 9}, name="find")]
    )
    shipped = find_applications(["search-generation"])
    workflows = Applications.of({"find": app, **shipped})
    with running_server(
        config, tenants, workflows=workflows, search=str(folder / "node")
    ) as running:
        yield running


def test_a_search_finds_what_is_the_tenants_alone(searching: RunningServer) -> None:
    for tenant, owner in {"a": "a", "b": "node"}.items():
        found = httpx.post(
            f"{searching.url}/v1/workflows/find/query",
            json={"query": {"words": "secret of a node"}}, headers=KEYS[tenant], timeout=60,
        ).raise_for_status().json()["results"]["found"]  # fmt: skip
        assert found == [f"The secret of {owner} is a number."]


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({"query": {"question": " "}}, 400, "query.question", "is empty: give words"),
        ({"query": {"question": "w" * 2049}}, 400, "query.question", "2049 characters; at most"),
        (
            {"query": {"question": "x"}, "config": {"search": {"top_k": 65}}},
            400, "config.search.top_k", "top_k is 65: give 1 to 64",
        ),
        (
            {"query": {"question": "x"}, "config": {"judge": {"model": "none"}}},
            404, "config.judge.model", "'none'",
        ),
    ],
)  # fmt: skip
def test_a_search_that_cannot_be_is_refused_before_any_work(
    searching: RunningServer, body: dict[str, Any], status: int, param: str, words: str
) -> None:
    path = f"{searching.url}/v1/workflows/search-generation/query"
    refused = httpx.post(path, json=body, headers=KEYS["a"], timeout=60)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], words in error["message"]) == (
        status, param, True
    ), error  # fmt: skip
    programs = httpx.get(f"{searching.url}/v1/programs", headers=KEYS["a"], timeout=60)
    assert all(one["name"] == "find" for one in programs.json()["data"])


def test_a_node_without_a_search_engine_says_so_before_any_work(http: httpx.Client) -> None:
    before = len(http.get("/v1/programs").json()["data"])
    path = "/v1/workflows/search-generation/query"
    refused = http.post(path, json={"query": {"question": "Who?"}})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "trait_missing")
    assert "start it with --search" in error["message"]
    assert len(http.get("/v1/programs").json()["data"]) == before


def test_a_failure_keeps_its_own_status(keyed: RunningServer, request_lines: RequestLines) -> None:
    path = f"{keyed.url}/v1/workflows/faulty/query"
    body = {"query": {"question": "this"}}
    refused = httpx.post(path, json=body, headers=KEYS["a"], timeout=60)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (500, "false")
    error = refused.json()["error"]
    assert (error["code"], error["message"]) == ("engine_fault", "do: cannot do this")
    line = request_lines.next()
    assert (line["outcome"], line["status"], line["error"]) == ("failed", 500, "engine_fault")
    programs = httpx.get(f"{keyed.url}/v1/programs", headers=KEYS["a"], timeout=60).json()["data"]
    assert line["program"] in {one["id"] for one in programs}
    assert request_lines.refused.empty(), "it had begun"
    httpx.post(path, json={"query": {}}, headers=KEYS["a"], timeout=60)
    assert request_lines.refused.get(timeout=60)["program"] is None


def test_a_query_asks_for_a_key_and_is_its_tenants_alone(keyed: RunningServer) -> None:
    path = f"{keyed.url}/v1/workflows/held/query"
    body = {"query": {"question": "x"}, "stream": True}
    assert httpx.post(path, json=body, timeout=60).status_code == 401
    HELD.cancelled.clear()
    with (
        httpx.Client(base_url=keyed.url, timeout=60) as http,
        http.stream("POST", path, json=body, headers=KEYS["a"]) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        public = json.loads(next(lines)[6:])["id"]
        assert HELD.began.wait(60)
        program = f"{keyed.url}/v1/programs/{public}"
        assert httpx.get(program, headers=KEYS["b"], timeout=60).status_code == 404
        record = httpx.get(program, headers=KEYS["a"], timeout=60).json()
        assert (record["name"], record["state"]) == ("held", "running")
        httpx.delete(program, headers=KEYS["a"], timeout=60).raise_for_status()
        last = json.loads([*lines][-2][6:])
    assert last["error"]["code"] == "program_cancelled"
    assert HELD.cancelled.wait(60)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_query(keyed: RunningServer, stream: bool) -> None:
    HELD.began.clear()
    HELD.cancelled.clear()
    body = {"query": {"question": "x"}, "stream": stream}

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=keyed.url, headers=KEYS["a"]) as http:
            asking = asyncio.create_task(http.post("/v1/workflows/held/query", json=body))
            await asyncio.to_thread(HELD.began.wait, 60)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    asyncio.run(leave())
    assert HELD.cancelled.wait(60)


def test_a_body_has_a_limit_of_its_own(keyed: RunningServer, http: httpx.Client) -> None:
    body = {"query": {"question": "x" * 5000}}
    path = "/v1/workflows/faulty/query"
    refused = httpx.post(keyed.url + path, json=body, headers=KEYS["a"], timeout=60)
    assert refused.status_code == 413
    assert "--max-query-bytes" in refused.json()["error"]["message"]
    large = [{"name": "a.md", "text": "x" * (5 << 20)}]
    read = http.post(NAIVE, json={"query": {"documents": large}})
    assert read.json()["error"]["param"] == "query.question", "beyond the limit of other routes"


def test_the_served_workflows_are_those_that_are_launched(keyed: RunningServer) -> None:
    body = {"program": "faulty", "named_args": {"query": {"question": "x"}}, "wait": True}
    ran = httpx.post(f"{keyed.url}/v1/programs", json=body, headers=KEYS["a"], timeout=60).json()
    assert (ran["form"], ran["state"]) == ("workflow", "failed")
    refused = httpx.post(
        f"{keyed.url}/v1/programs", json={"program": "naive-rag"}, headers=KEYS["a"], timeout=60
    )
    assert refused.status_code == 404


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="two workflows are named 'naive-rag'"):
        find_applications(["naive-rag", "naive-rag"])


def test_a_deadline_and_a_budget_of_tokens_end_a_query(
    http: httpx.Client, keyed: RunningServer
) -> None:
    body: dict[str, Any] = {"query": {"question": "x"}, "deadline_s": 0.05}
    with httpx.Client(base_url=keyed.url, headers=KEYS["a"]) as client:
        answer = client.post("/v1/workflows/held/query", json=body)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    unasked = {**QUERY, "question": "Which answer is not kept yet?"}
    answer = http.post(NAIVE, json={"query": unasked, "max_generated_tokens": 1})
    assert answer.status_code == 400
    assert "raise max_generated_tokens" in answer.json()["error"]["message"]
    answer = http.post(NAIVE, json={"query": QUERY, "deadline_s": 0})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "deadline_s")


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return float(line.split()[-1])


def test_a_query_that_speculates_says_what_it_has_cost(http: httpx.Client) -> None:
    contextual = "/v1/workflows/contextual-retrieval/query"
    body: dict[str, Any] = {"query": QUERY}
    plain = http.post(contextual, json=body).raise_for_status().json()
    assert plain["speculation"] is None
    kept, dropped = (
        metric(http, f'quire_workflow_speculated_total{{outcome="{one}"}}')
        for one in ("kept", "dropped")
    )
    body["speculate"] = True
    answer = http.post(contextual, json=body).raise_for_status().json()
    assert answer["results"] == plain["results"]
    told = answer["speculation"]
    assert told["num_begun"] == told["num_kept"] + told["num_dropped"] > 0
    assert told["num_dropped_tokens"] <= answer["usage"]["num_generated_tokens"]
    now = metric(http, 'quire_workflow_speculated_total{outcome="kept"}')
    assert now == kept + told["num_kept"]
    now = metric(http, 'quire_workflow_speculated_total{outcome="dropped"}')
    assert now == dropped + told["num_dropped"]
    events = events_of(http.post(contextual, json=body | {"stream": True}).text)
    assert events[-1]["speculation"]["num_begun"] > 0
    ahead = [one for one in events if one.get("ahead")]
    assert len(ahead) == events[-1]["speculation"]["num_kept"]
    answer = http.post(contextual, json=body | {"speculate": "yes"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speculate")


class Elsewhere(BaseHTTPRequestHandler):
    """An endpoint of OpenAI's chat completions with one answer."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"role": "assistant", "content": f"{asked['model']} says yes"}
        choice = {"index": 0, "message": answer, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        content = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_behind_http_need_not_be_one_of_the_nodes(elsewhere: str) -> None:
    app = App("remote", [Engine("llm", config={"base_url": elsewhere, "model": "theirs"})])
    config = {"prompt": "{question}"}
    app.update_template(
        [Node("llm", {"question": "text"}, {"answer": "text"}, config=config, name="ask")]
    )
    body = {"query": {"question": "Is it?"}}
    with running_server(workflows=Applications.of({"remote": app})) as server:
        answer = httpx.post(f"{server.url}/v1/workflows/remote/query", json=body, timeout=60)
    assert answer.json().get("results") == {"answer": "theirs says yes"}, answer.text


def test_the_passes_of_an_application_optimise_what_is_asked_over_http(
    keyed: RunningServer,
) -> None:
    """Queries of one shape have one graph; one that speculates has another."""
    with httpx.Client(base_url=keyed.url, headers=KEYS["a"]) as http:
        for speculates, num_seen in ((False, 1), (False, 1), (True, 2)):
            body = {"query": {"question": "x"}, "speculate": speculates}
            answer = http.post("/v1/workflows/seen/query", json=body).raise_for_status().json()
            assert answer["results"] == {"answer": "x"}
            assert SEEN.num_seen == num_seen
        answer = http.post("/v1/workflows/broken/query", json={"query": {"question": "x"}})
        listed = http.get("/v1/programs").json()["data"]
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "passes")
    assert "the pass 'mine' failed at test_server_workflows.py:" in error["message"]
    assert "broken" not in {one["name"] for one in listed}, "it was refused before any work"
