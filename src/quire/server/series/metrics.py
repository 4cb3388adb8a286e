"""The content of ``/metrics``: Prometheus series under ``quire_*`` and the ``vllm:*`` aliases.

Owns its own registry. Figures of requests are counted as requests end; the node's figures are read
from its snapshots at each scrape. Must not know routes.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, generate_latest

from quire.core.ids import ModelId
from quire.node import Node
from quire.server.series.node import MODEL_LABEL, PREFIXES, NodeCollector


class RequestMetrics:
    """Figures of generating requests, as their clients saw them. The node itself measures the
    latencies of all forms of programs (see ``NodeCollector``)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_: str, labels: tuple[str, ...] = (MODEL_LABEL,)) -> Counter:
            return Counter(name, help_, labels, registry=registry)

        self._prompt = [
            counter(f"{prefix}prompt_tokens", "Prompt tokens of ended requests")
            for prefix in PREFIXES
        ]
        self._cached = counter(
            "quire_cached_prompt_tokens", "Prompt tokens that came from the prefix cache"
        )
        self._choices = counter(
            "vllm:request_success",
            "Choices that ended, by reason",
            (MODEL_LABEL, "finished_reason"),
        )
        self._requests = counter(
            "quire_requests", "Generating requests that ended", (MODEL_LABEL, "route", "outcome")
        )
        self._refused = counter(
            "quire_refused_requests",
            "Requests that were refused before any work began",
            ("status", "error"),
        )

    def observe_refusal(self, status: int, code: str | None) -> None:
        self._refused.labels(str(status), code or "").inc()

    def observe_end(
        self,
        model: ModelId,
        route: str,
        outcome: str,
        *,
        num_prompt_tokens: int,
        num_cached: int,
        finish_reasons: Mapping[str, int],
    ) -> None:
        self._requests.labels(model, route, outcome).inc()
        self._cached.labels(model).inc(num_cached)
        for prompt in self._prompt:
            prompt.labels(model).inc(num_prompt_tokens)
        for reason, count in finish_reasons.items():
            self._choices.labels(model, reason).inc(count)


class ServerMetrics:
    """The registry of one server."""

    def __init__(self, node: Node) -> None:
        self._registry = CollectorRegistry()
        self.requests = RequestMetrics(self._registry)
        self._registry.register(NodeCollector(node))

    def exposition(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self._registry)
