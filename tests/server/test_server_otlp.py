"""A node that sends its spans to a collector: a real one on loopback, below the client's span."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from otlp_collector import Collector, attributes, collecting
from scripted_server import MODEL, RunningServer, running_server

from quire.core.errors import ConfigError
from quire.node.tracing.otlp import make_export, traces_url

TRACE, SPAN = "a" * 32, "b" * 16
CLIENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with collecting() as collector:
        yield collector


def complete(server: RunningServer, headers: dict[str, str]) -> None:
    body = {"model": MODEL, "prompt": "say yes", "max_tokens": 8}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.e2e
def test_spans_reach_the_collector_below_the_clients(collector: Collector) -> None:
    with running_server(otlp_endpoint=collector.url) as server:
        complete(server, CLIENT | {"x-quire-program-id": "chat"})
        complete(server, CLIENT)
        spans = collector.wait_for(f"text_completion {MODEL}", "session")
        call, session = spans[f"text_completion {MODEL}"], spans["session"]
        assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, SPAN)
        assert (session.trace_id.hex(), session.parent_span_id.hex()) == (TRACE, SPAN)
        found = attributes(call)
        assert found["gen_ai.request.model"] == MODEL
        assert found["gen_ai.usage.output_tokens"] > 0
        assert call.start_time_unix_nano <= call.end_time_unix_nano
        with httpx.Client(base_url=server.url, timeout=60) as http:
            http.post("/v1/sessions", json={"id": "asked"}, headers=CLIENT)
            launch = {"program": "text_completion", "args": ["Hello", "2"], "wait": True}
            assert http.post("/v1/programs", json=launch, headers=CLIENT).status_code == 201
        program = collector.wait_for("inferlet text_completion")["inferlet text_completion"]
        assert (program.trace_id.hex(), program.parent_span_id.hex()) == (TRACE, SPAN)
    # the node has stopped: the sessions have ended, and what was queued was sent
    sessions = {
        attributes(span).get("gen_ai.conversation.id"): span.parent_span_id.hex()
        for span in collector.spans
        if span.name == "session"
    }
    assert sessions == {None: SPAN, "asked": SPAN, "chat": ""}, "chat is for many requests"
    resource = collector.resources[0]
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("quire", "test")


@pytest.mark.e2e
def test_a_collector_that_refuses_hurts_nobody(collector: Collector) -> None:
    collector.status = 400
    with running_server(otlp_endpoint=collector.url) as server:
        complete(server, {})
        collector.wait_for("session")
        complete(server, {})
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert http.get("/ready").status_code == 200
            metrics = http.get("/metrics").text
    assert 'quire_spans_total{outcome="sent"} 0.0' in metrics


def test_where_traces_go() -> None:
    assert traces_url("http://collector:4318") == "http://collector:4318/v1/traces"
    assert traces_url("http://collector:4318/") == "http://collector:4318/v1/traces"
    assert traces_url("https://host/own/path") == "https://host/own/path"


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://x", "http://", ""])
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:4318"):
        make_export(endpoint)


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'quire\[otel\]'"):
        make_export("http://127.0.0.1:4318")


def test_nothing_of_it_is_imported_without_an_endpoint() -> None:
    script = """
import sys
from quire.cli import serve
from quire.core.config import EngineConfig, NodeConfig
from quire.node import Node
Node(NodeConfig((EngineConfig(source="", name=""),)), transport_factory=lambda engine: None)
sys.exit([name for name in sys.modules if name.startswith("opentelemetry")] or None)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
