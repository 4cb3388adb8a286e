"""An adapter is a model of its own over HTTP, and MODEL:ADAPTER names it too."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from scripted_server import MODEL, TOKENIZER, running_server

from quire.core.decoding import StopSpec
from quire.core.engine_info import AdapterInfo
from quire.core.ids import EngineId
from quire.testing import FakeEngine, expected_tokens, fake_pool

NAMES = ("formal", "brief")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    def load() -> FakeEngine:
        pool = fake_pool(page_size=16, num_blocks=256)
        return FakeEngine(pool, tokenizer=TOKENIZER, model=MODEL, adapters=NAMES)

    with running_server(load=load, adapters=NAMES) as running:
        yield running.url


def completion(url: str, model: str) -> httpx.Response:
    body = {"model": model, "prompt": list(range(40, 60)), "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}, timeout=60)


def test_models_are_listed_with_their_parents(url: str) -> None:
    listed = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
    assert [(one["id"], one["root"], one.get("parent")) for one in listed] == [
        (MODEL, MODEL, None),
        ("formal", MODEL, MODEL),
        ("brief", MODEL, MODEL),
    ]
    assert httpx.get(f"{url}/v1/models/brief", timeout=60).json()["parent"] == MODEL


@pytest.mark.parametrize(
    ("model", "adapter"),
    [(MODEL, -1), ("formal", 0), ("brief", 1), (f"{MODEL}:formal", 0), (f"{MODEL}:brief", 1)],
)
def test_the_answer_is_that_of_the_adapter(url: str, model: str, adapter: int) -> None:
    tokens = expected_tokens(list(range(40, 60)), StopSpec(max_tokens=8), adapter=adapter)
    answer = completion(url, model).json()
    assert answer["choices"][0]["text"] == TOKENIZER.decode(tokens, skip_special=True)


class Restarted:
    """An engine that is lost when it is told to, and comes up again without "formal"."""

    def __init__(self) -> None:
        self.engines: list[FakeEngine] = []

    def load(self) -> FakeEngine:
        gone = AdapterInfo(name="formal", digest="", rank=0, problem="its directory is gone")
        adapters = (gone, "brief") if self.engines else NAMES
        pool = fake_pool(page_size=16, num_blocks=256)
        engine = FakeEngine(pool, tokenizer=TOKENIZER, model=MODEL, adapters=adapters)
        self.engines.append(engine)
        return engine


def test_an_adapter_that_is_gone_when_its_engine_restarts_is_missed_alone() -> None:
    restarted = Restarted()
    with running_server(load=restarted.load, adapters=NAMES) as server:
        assert completion(server.url, "formal").status_code == 200
        restarted.engines[0].close()  # it faults at the next message
        assert completion(server.url, MODEL).status_code == 503
        server.wait(
            server.node.wait_health(
                lambda health: health.ready and health.engines[EngineId(f"{MODEL}#0")].restarts == 1
            )
        )
        refused = completion(server.url, "formal")
        assert refused.status_code == 503
        assert "its directory is gone" in refused.json()["error"]["message"]
        assert completion(server.url, f"{MODEL}:formal").status_code == 503
        for model, adapter in ((MODEL, -1), ("brief", 1)):
            tokens = expected_tokens(list(range(40, 60)), StopSpec(max_tokens=8), adapter=adapter)
            answer = completion(server.url, model).json()
            assert answer["choices"][0]["text"] == TOKENIZER.decode(tokens, skip_special=True)
        listed = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
        assert [one["id"] for one in listed] == [MODEL, "brief"]
        health = httpx.get(f"{server.url}/health", timeout=60)
        assert health.status_code == 200
        detail = health.json()["engines"][f"{MODEL}#0"]["detail"]
        assert detail == "without adapter formal: its directory is gone"


@pytest.mark.parametrize("model", ["rude", f"{MODEL}:rude", f"{MODEL}:{MODEL}", "formal:brief"])
def test_other_names_are_not_found(url: str, model: str) -> None:
    refused = completion(url, model)
    assert refused.status_code == 404
    assert "formal, brief" in refused.json()["error"]["message"]
