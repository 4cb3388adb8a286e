"""/metrics: the names that dashboards know, and figures that move with requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from scripted_server import RunningServer

from quire.core.ids import EngineId
from quire.node import EngineReadiness, Node, NodeStatistics
from quire.node.supervision.health import EngineHealth
from quire.server.series.node import NodeCollector

VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(http: httpx.Client) -> tuple[dict[str, str], Samples]:
    """Types by family and values by name and labels."""
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    kinds: dict[str, str] = {}
    values: Samples = {}
    for family in text_string_to_metric_families(response.text):
        assert family.name not in kinds, "a family stands once"
        kinds[family.name] = family.type
        for sample in family.samples:
            values[sample.name, frozenset(sample.labels.items())] = sample.value
    return kinds, values


MODEL = frozenset({("model_name", "scripted")})
ENGINE = MODEL | {("engine", "scripted#0")}


def test_every_vllm_name_has_its_quire_twin(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "say x"}).raise_for_status()
    kinds, values = scrape(http)
    assert set(kinds) >= VLLM_NAMES
    for name in VLLM_NAMES:
        twin = name.replace("vllm:", "quire_")
        assert kinds[twin] == kinds[name]
    labelled = {dict(labels).get("model_name") for name, labels in values if name[:5] == "vllm:"}
    encoders = {"embedder", "ranker"}  # once another test has asked them
    assert labelled - encoders == {"scripted"}


def test_the_sizes_of_a_cache_are_labels_as_vllm_writes_them(http: httpx.Client) -> None:
    _, values = scrape(http)
    sizes = {("block_size", "16"), ("num_gpu_blocks", "1024")}
    assert values["vllm:cache_config_info", ENGINE | sizes] == 1


def test_refused_requests_are_counted(http: httpx.Client) -> None:
    """By status and error; what has begun is not among them."""

    def refused(values: Samples, status: str, error: str) -> float:
        labels = frozenset({("status", status), ("error", error)})
        return values.get(("quire_refused_requests_total", labels), 0)

    _, before = scrape(http)
    http.post("/v1/completions", json={"prompt": "x", "temperature": 9})
    http.post("/v1/completions", json={"prompt": "x", "model": "none"})
    http.get("/v1/nowhere")
    http.post("/v1/completions", json={"prompt": "say x"}).raise_for_status()
    _, after = scrape(http)
    for status, error in (
        ("400", "invalid_argument"),
        ("404", "model_not_found"),
        ("404", "not_found"),
    ):
        assert refused(after, status, error) == refused(before, status, error) + 1
    total = sum(v for (name, _), v in after.items() if name == "quire_refused_requests_total")
    earlier = sum(v for (name, _), v in before.items() if name == "quire_refused_requests_total")
    assert total == earlier + 3


def test_requests_move_the_figures(http: httpx.Client) -> None:
    prompt = "say count " + "y" * 64
    _, before = scrape(http)
    for _ in range(2):
        http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 5}).raise_for_status()
    _, after = scrape(http)

    def moved(name: str, labels: frozenset[tuple[str, str]] = ENGINE) -> float:
        return after[name, labels] - before.get((name, labels), 0.0)

    for prefix in ("quire_", "vllm:"):
        assert moved(f"{prefix}prompt_tokens_total", MODEL) == 2 * len(prompt)
        assert moved(f"{prefix}generation_tokens_total") == 10
        assert moved(f"{prefix}time_to_first_token_seconds_count") == 2
        assert moved(f"{prefix}e2e_request_latency_seconds_count") == 2
        assert moved(f"{prefix}prefix_cache_hits_total") >= 64
    assert moved("quire_cached_prompt_tokens_total", MODEL) >= 64
    ended = MODEL | {("route", "/v1/completions"), ("outcome", "finished")}
    assert moved("quire_requests_total", ended) == 2


def test_buckets_are_cumulative(http: httpx.Client) -> None:
    _, values = scrape(http)
    name = "vllm:time_to_first_token_seconds"
    buckets = sorted(
        (float(dict(labels)["le"]), value)
        for (found, labels), value in values.items()
        if found == f"{name}_bucket"
    )
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == values[f"{name}_count", ENGINE]


def test_messages_are_counted_by_their_rows(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "say x"}).raise_for_status()
    kinds, values = scrape(http)
    assert kinds["quire_batch_size"] == "histogram"
    num_batches = values["quire_batches_total", ENGINE]
    assert values["quire_batch_size_count", ENGINE] == num_batches
    single = values["quire_batch_size_bucket", ENGINE | {("le", "1")}]
    assert 0 < single <= num_batches
    assert values["quire_batch_size_sum", ENGINE] > 0


def test_ended_programs_are_counted_by_form_and_outcome(http: httpx.Client) -> None:
    labels = frozenset({("form", "inferlet"), ("outcome", "finished")})
    name = "quire_programs_ended_total"
    _, before = scrape(http)
    body = {"program": "text_completion", "args": ["say x"], "wait": True}
    record = http.post("/v1/programs", json=body).raise_for_status().json()
    _, after = scrape(http)
    assert after[name, labels] == before.get((name, labels), 0) + 1
    assert record["process"] is None
    assert record["duration_s"] > 0
    usage = record["usage"]
    assert usage["num_generated_tokens"] > 0
    assert usage["guest_cpu_s"] is None
    assert http.get(f"/v1/programs/{record['id']}").json()["usage"] == usage
    listed = http.get("/v1/programs").json()["data"]
    assert next(one["usage"] for one in listed if one["id"] == record["id"]) == usage


@dataclass(frozen=True)
class WithEngines:
    """As much of a node as the series read: ``node``, with other engines."""

    node: Node
    engines: dict[EngineId, EngineHealth]

    def statistics(self) -> NodeStatistics:
        found = self.node.statistics()
        return replace(found, health=replace(found.health, engines=self.engines))

    def models(self) -> Any:
        return self.node.models()


def test_each_replica_tells_whether_it_is_ready(server: RunningServer) -> None:
    states = {
        EngineId("m#0"): EngineHealth(EngineReadiness.READY),
        EngineId("m#1"): EngineHealth(EngineReadiness.RESTARTING, "killed", restarts=3),
        EngineId("other#0"): EngineHealth(EngineReadiness.FAILED, "no memory", restarts=5),
    }
    collector: Any = NodeCollector(WithEngines(server.node, states))  # type: ignore[arg-type]
    families = server.call(lambda: list(collector.collect()))
    found = {
        (sample.name, sample.labels["engine"]): sample.value
        for family in families
        if family.name in ("quire_engine_ready", "quire_engine_restarts")
        for sample in family.samples
    }
    assert found == {
        ("quire_engine_ready", "m#0"): 1,
        ("quire_engine_ready", "m#1"): 0,
        ("quire_engine_ready", "other#0"): 0,
        ("quire_engine_restarts_total", "m#0"): 0,
        ("quire_engine_restarts_total", "m#1"): 3,
        ("quire_engine_restarts_total", "other#0"): 5,
    }


def test_the_engine_of_a_node_that_serves_is_ready(http: httpx.Client) -> None:
    _, values = scrape(http)
    assert values["quire_engine_ready", frozenset({("engine", "scripted#0")})] == 1
