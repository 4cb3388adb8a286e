"""/v1/embeddings through the openai package, /v1/rerank and /v1/score as clients call them."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from request_log import RequestLines
from scripted_server import RunningServer, running_server

from quire.core.config import ServerConfig, TenantConfig
from quire.core.encoding import EncodeBatch, EncodeResult
from quire.core.ids import TenantId
from quire.testing import FakeEncoder

CLS, SEP = 2, 3


def counts(*tokens: int) -> list[float]:
    """What the fake encoder makes of a sequence."""
    return np.bincount(np.asarray(tokens) % 8, minlength=8).astype(float).tolist()


def test_an_embedding_of_a_text(client: openai.OpenAI, request_lines: RequestLines) -> None:
    found = client.embeddings.create(model="embedder", input="a b", encoding_format="float")
    (one,) = found.data
    assert one.embedding == counts(CLS, 10, 11, SEP)
    assert (found.model, one.index, found.object, one.object) == (
        "embedder",
        0,
        "list",
        "embedding",
    )
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (4, 4)
    line = request_lines.next()
    assert (line["route"], line["outcome"], line["prompt_tokens"]) == (
        "/v1/embeddings",
        "finished",
        4,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a", "b c"], [counts(CLS, 10, SEP), counts(CLS, 11, 12, SEP)]),
        ([10, 11, 12], [counts(10, 11, 12)]),
        ([[10], [11, 12]], [counts(10), counts(11, 12)]),
    ],
)
def test_batches_and_token_ids(client: openai.OpenAI, given: Any, expected: Any) -> None:
    """The package asks for base64 unless it is told otherwise, and decodes it."""
    found = client.embeddings.create(model="embedder", input=given)
    assert [one.embedding for one in found.data] == expected
    assert [one.index for one in found.data] == list(range(len(expected)))


def test_base64_is_little_endian_float32(http: httpx.Client) -> None:
    body = {"input": "a", "encoding_format": "base64"}
    (one,) = http.post("/v1/embeddings", json=body).json()["data"]
    raw = base64.b64decode(one["embedding"])
    assert np.frombuffer(raw, "<f4").tolist() == counts(CLS, 10, SEP)


def test_dimensions_cut_and_scale(client: openai.OpenAI) -> None:
    found = client.embeddings.create(
        model="embedder", input="a b", dimensions=4, encoding_format="float"
    )
    whole = np.asarray(counts(CLS, 10, 11, SEP))[:4]
    np.testing.assert_allclose(found.data[0].embedding, whole / np.linalg.norm(whole), rtol=1e-6)
    with pytest.raises(openai.BadRequestError, match="have 8"):
        client.embeddings.create(model="embedder", input="a", dimensions=9)


def test_a_text_that_is_too_long_is_refused_or_cut(http: httpx.Client) -> None:
    long = {"input": ["a", "b " * 80]}
    answer = http.post("/v1/embeddings", json=long)
    assert answer.status_code == 400
    assert "sequence 1 has 82 tokens, but 'embedder' reads 64" in answer.text
    assert answer.json()["error"]["param"] == "input"
    for limit, num_tokens in ((-1, 64), (5, 5), (1000, 64)):
        answer = http.post("/v1/embeddings", json={**long, "truncate_prompt_tokens": limit})
        assert answer.json()["usage"]["prompt_tokens"] == 3 + num_tokens


# -- reranking -------------------------------------------------------------------------------------


def test_documents_in_the_order_of_their_relevance(http: httpx.Client) -> None:
    body = {"model": "ranker", "query": "a b", "documents": ["c d", "a b", {"text": "a c"}]}
    answer = http.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [one["index"] for one in found["results"]] == [1, 2, 0]
    assert [one["document"]["text"] for one in found["results"]] == ["a b", "a c", "c d"]
    scores = [one["relevance_score"] for one in found["results"]]
    # the second segment ends with [SEP], which the first one has too
    np.testing.assert_allclose(scores, [1, 2 / 3, 1 / 3], rtol=1e-6)
    assert found["usage"]["total_tokens"] == 3 * 7
    body |= {"top_n": 1, "return_documents": False}
    (best,) = http.post("/v1/rerank", json=body).json()["results"]
    assert best == {"index": 1, "relevance_score": 1.0}


def test_scores_of_pairs(http: httpx.Client) -> None:
    def scores(first: Any, second: Any) -> list[float]:
        answer = http.post("/v1/score", json={"text_1": first, "text_2": second})
        assert answer.status_code == 200, answer.text
        assert [one["index"] for one in answer.json()["data"]] == list(
            range(len(answer.json()["data"]))
        )
        return [one["score"] for one in answer.json()["data"]]

    np.testing.assert_allclose(scores("a", "a"), [1])
    np.testing.assert_allclose(scores("a", ["a", "b"]), [1, 0.5])
    np.testing.assert_allclose(scores(["a", "b"], ["b", "b"]), [0.5, 1])


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank", "/score"])
def test_other_servers_paths_are_the_same_routes(http: httpx.Client, path: str) -> None:
    """vLLM's, Cohere's and Jina's; the OpenAPI document has one name for each."""
    body = {"text_1": "a", "text_2": ["a", "b"]}
    ours = "/v1/score"
    if "rerank" in path:
        body, ours = {"query": "a", "documents": ["b", "a"]}, "/v1/rerank"
    key = "results" if "rerank" in path else "data"
    theirs, mine = (http.post(one, json=body).json() for one in (path, ours))
    assert theirs[key] == mine[key]
    assert theirs["usage"] == mine["usage"]
    paths = http.get("/openapi.json").json()["paths"]
    assert ours in paths
    assert path not in paths


def test_a_document_that_is_too_long_is_cut_and_the_query_is_not(http: httpx.Client) -> None:
    body = {"query": "a", "documents": ["b " * 80], "return_documents": False}
    assert http.post("/v1/rerank", json=body).status_code == 400
    cut = http.post("/v1/rerank", json={**body, "truncate_prompt_tokens": -1})
    assert cut.json()["usage"]["prompt_tokens"] == 64
    body = {"query": "a " * 80, "documents": ["b"], "truncate_prompt_tokens": -1}
    assert http.post("/v1/rerank", json=body).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b", "b " * 80]}, "documents[1]"),
        ("/v1/rerank", {"query": "a " * 80, "documents": ["b"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 2}, None),
        ("/v1/score", {"text_1": "a", "text_2": "b " * 80}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["b " * 80]}, "text_2[0]"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b " * 80]}, "text_2[1]"),
        ("/v1/score", {"text_1": ["a", "a " * 80], "text_2": ["a", "b"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "model": "nothing"}, "model"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "model": "embedder"}, "model"),
    ],
)
def test_an_error_of_pairs_names_the_field(
    http: httpx.Client, path: str, body: dict[str, Any], param: str | None
) -> None:
    error = http.post(path, json=body).json()["error"]
    assert error["param"] == (param or "truncate_prompt_tokens"), error


# -- what cannot be served -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"input": ""}, 400),
        ("/v1/embeddings", {"input": []}, 400),
        ("/v1/embeddings", {"input": ["a", ""]}, 400),
        ("/v1/embeddings", {"input": ["a", 1]}, 400),
        ("/v1/embeddings", {"input": [1, "a"]}, 400),
        ("/v1/embeddings", {"input": [[]]}, 400),
        ("/v1/embeddings", {"input": ["a"] * 2049}, 400),
        ("/v1/embeddings", {"input": [1 << 20]}, 400),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, 400),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 1}, 400),
        ("/v1/embeddings", {"input": "a", "model": "nothing"}, 404),
        ("/v1/embeddings", {"input": "a", "model": "ranker"}, 400),
        ("/v1/rerank", {"query": "a", "documents": []}, 400),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "model": "embedder"}, 400),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 400),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400),
    ],
)
def test_bad_requests(http: httpx.Client, path: str, body: Any, status: int) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_encoders_are_listed_as_models_and_do_not_chat(client: openai.OpenAI) -> None:
    models = {model.id: model.model_dump() for model in client.models.list()}
    assert models["embedder"]["max_model_len"] == 64
    assert client.models.retrieve("ranker").id == "ranker"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(
            model="embedder", messages=[{"role": "user", "content": "x"}]
        )


def test_without_an_encoder_the_remedy_is_named() -> None:
    with running_server() as server:
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": "a"}, timeout=60)
    assert answer.status_code == 404
    assert "--encoder" in answer.json()["error"]["message"]


class GatedEncoder(FakeEncoder):
    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.num_sequences = 0

    def encode(self, batch: EncodeBatch) -> EncodeResult:
        self.arrived.set()
        self.gate.wait()
        self.num_sequences += len(batch.lengths)
        return super().encode(batch)


def num_pending(server: RunningServer) -> int:
    """Commands of the programs that control knows."""

    def count(controller: Any) -> int:
        pending: int = controller.statistics().num_pending_commands
        return pending

    pending: int = server.node._parts.control.call(count)
    return pending


def test_what_a_client_that_leaves_has_waiting_is_not_run(request_lines: RequestLines) -> None:
    encoder = GatedEncoder()
    with running_server(encoders={"e": encoder}) as server:
        raw = json.dumps({"input": ["a " * 60] * 1000}).encode()
        head = "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(head.encode() + raw)
            assert encoder.arrived.wait(60)
        line = request_lines.next()
        assert (line["outcome"], line["reason"]) == ("aborted", "the client has disconnected")
        deadline_s = time.monotonic() + 60
        while num_pending(server) and time.monotonic() < deadline_s:
            time.sleep(0.01)  # the line is written before control is told
        encoder.gate.set()
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": "a"}, timeout=60)
        assert answer.status_code == 200
    assert encoder.num_sequences < 600, "at most two batches of 264 were under way"


def test_keys_are_asked_for() -> None:
    tenants = [TenantConfig(TenantId("a"), api_keys=("secret",))]
    with running_server(tenants=tenants, encoders={"e": FakeEncoder()}) as server:
        url, body = f"{server.url}/v1/embeddings", {"input": "a"}
        assert httpx.post(url, json=body, timeout=60).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200


# -- beside the model ------------------------------------------------------------------------------

ENCODES = """
import json
from quire.programs.sdk import inferlet

@inferlet("encodes", traits={"Encode": 1})
async def encodes(api, texts, dimensions):
    texts = json.loads(texts)
    size = int(dimensions) or None
    return [await api.embed(texts, dimensions=size), await api.rerank(texts[0], texts[1:])]
"""


def test_a_program_gets_what_the_routes_give() -> None:
    encoders = {"embedder": FakeEncoder(), "ranker": FakeEncoder("cross_encoder")}
    texts = ["a b c", "b", "c a", "d " * 40]
    with running_server(ServerConfig(allow_native_upload=True), encoders=encoders) as server:
        for dimensions in (0, 5):
            body: dict[str, Any] = {"input": texts}
            if dimensions:
                body["dimensions"] = dimensions
            found = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).json()
            ranked = {"query": texts[0], "documents": texts[1:]}
            scored = httpx.post(f"{server.url}/v1/rerank", json=ranked, timeout=60).json()
            args = [json.dumps(texts), str(dimensions)]
            launch = {"source": ENCODES, "args": args, "wait": True}
            ended = httpx.post(f"{server.url}/v1/programs", json=launch, timeout=60).json()
            vectors, scores = ended["result"]
            assert vectors == [one["embedding"] for one in found["data"]]
            by_index = {one["index"]: one["relevance_score"] for one in scored["results"]}
            assert scores == [by_index[index] for index in range(3)]
            assert len(vectors[0]) == (dimensions or 8)
            assert scores[1] > scores[2]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": "a", "prompt_name": "query"}, "prompt_name"),
        ("/v1/embeddings", {"input": [10, 11], "prompt_name": "query"}, "prompt_name"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "instruction": "c"}, "instruction"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "c"}, "instruction"),
    ],
)
def test_what_the_model_has_no_place_for_is_refused_by_name(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_session_has_what_was_encoded_for_it(http: httpx.Client) -> None:
    """Priority, thread and parent are known too; the session ends when its client says so."""
    headers = {"X-Quire-Program-ID": "indexer", "X-Quire-Thread-ID": "pages"}
    body = {"model": "embedder", "input": ["a b", "c"]}
    for _ in range(2):
        http.post("/v1/embeddings", json=body, headers=headers).raise_for_status()

    def mine() -> list[dict[str, Any]]:
        listed = http.get("/v1/programs").json()["data"]
        return [one for one in listed if one["client_id"] == "indexer"]

    (session,) = mine()
    assert session["form"] == "session"
    assert session["process"]["num_encoded_tokens"] == 14
    assert session["process"]["num_generated_tokens"] == 0
    last = {**headers, "X-Quire-Final": "true"}
    http.post("/v1/embeddings", json=body, headers=last).raise_for_status()
    assert mine() == []


def test_what_encoders_did_is_in_the_metrics(http: httpx.Client) -> None:
    def read() -> dict[str, float]:
        lines = http.get("/metrics").text.splitlines()
        named = [line for line in lines if line.startswith("quire_encoder_")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in named)}

    before = read()
    body = {"model": "embedder", "input": ["a b", "c"]}
    http.post("/v1/embeddings", json=body).raise_for_status()
    after = read()
    labels = '{engine="embedder#0",model_name="embedder"}'
    moved = {name: after[name] - before[name] for name in after if labels in name}
    assert moved.pop(f"quire_encoder_busy_seconds_total{labels}") >= 0
    assert moved == {
        f"quire_encoder_batches_total{labels}": 1,
        f"quire_encoder_short_batches_total{labels}": 0,
        f"quire_encoder_sequences_total{labels}": 2,
        f"quire_encoder_tokens_total{labels}": 7,
        f"quire_encoder_reused_tokens_total{labels}": 0,
        f"quire_encoder_token_cache_bytes{labels}": 0,
    }
    assert after['quire_encoder_requests_waiting{model_name="embedder"}'] == 0
    assert after['quire_encoder_sequences_pending{model_name="embedder"}'] == 0
    rows = 'quire_encoder_rows_total{source="computed"}'
    assert after[rows] == before[rows], "of programs alone"
