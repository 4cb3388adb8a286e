"""The router's own ``/metrics``. Must not know routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.cluster.engines.fleet import Fleet
from quire.cluster.passing.continuations import Cause, Outcome
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.routing.running import RunningStrategy

_OUTCOMES = ("finished", "failed", "aborted")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RouterMetrics:
    """The registry of one router. Implements ``ContinuationWatcher``. A node that has left the
    router for good has no series."""

    def __init__(self, fleet: Fleet, strategy: RunningStrategy, rescue: ProgramRescue) -> None:
        self._fleet = fleet
        self._shown: set[str] = set()
        """The names of the nodes that have series."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "quire_router_requests",
            "Requests that ended, by the node that answered",
            ("node", "outcome"),
            registry=self._registry,
        )
        self._refused = Counter(
            "quire_router_refused_requests",
            "Requests that were answered with an error of the router",
            ("status", "error"),
            registry=self._registry,
        )
        self._first = Histogram(
            "quire_router_first_byte_seconds",
            "From a request to the first bytes of its answer",
            ("node",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._moves = Counter(
            "quire_router_answer_moves_begun",
            "Running answers that have begun to move to another node",
            registry=self._registry,
        )
        self._continued = Counter(
            "quire_router_answers_continued",
            "Answers that moved by choice (move), or whose node was lost (loss), by what became of "
            "them: done (they go on at another node), stayed, failed, aborted (the client left)",
            ("cause", "outcome"),
            registry=self._registry,
        )
        self._pauses = Histogram(
            "quire_router_answer_pause_seconds",
            "What a client waits while its answer changes the node: from the end of one stream to "
            "the first event of the next",
            ("cause",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_NodeCollector(fleet, strategy))
        self._registry.register(_ProgramCollector(rescue))

    def began(self, node: str, elapsed_s: float) -> None:
        self._note(node)
        self._first.labels(node).observe(elapsed_s)

    def ended(self, node: str, outcome: str) -> None:
        self._note(node)
        self._requests.labels(node, outcome).inc()

    def observe_refusal(self, status: int, code: str | None) -> None:
        self._refused.labels(str(status), code or "").inc()

    def move_began(self) -> None:
        self._moves.inc()

    def continued(self, cause: Cause, outcome: Outcome, pause_s: float | None) -> None:
        self._continued.labels(cause, outcome).inc()
        if pause_s is not None:
            self._pauses.labels(cause).observe(pause_s)

    def exposition(self) -> bytes:
        """Return all series in Prometheus' text format."""
        self._drop_gone()
        return generate_latest(self._registry)

    def _note(self, node: str) -> None:
        """Note that ``node`` has series. Nodes come and go while nobody reads them."""
        if node not in self._shown:
            self._drop_gone()
            self._shown.add(node)

    def _drop_gone(self) -> None:
        """Drop the series of nodes that are neither in force nor leaving. The empty name is that
        of requests that no node has answered."""
        known = {engine.name for engine in (*self._fleet.engines, *self._fleet.leaving)}
        for node in self._shown - known - {""}:
            self._shown.discard(node)
            with suppress(KeyError):
                self._first.remove(node)
            for outcome in _OUTCOMES:
                with suppress(KeyError):
                    self._requests.remove(node, outcome)


class _NodeCollector(Collector):
    def __init__(self, fleet: Fleet, strategy: RunningStrategy) -> None:
        self._fleet = fleet
        self._strategy = strategy

    def collect(self) -> Iterator[Metric]:
        alive = GaugeMetricFamily("quire_router_node_alive", "1: alive", labels=("node",))
        ready = GaugeMetricFamily(
            "quire_router_node_ready", "1: alive and takes new work", labels=("node",)
        )
        unready = GaugeMetricFamily(
            "quire_router_node_unready_models",
            "Models of the node that it cannot serve now",
            labels=("node",),
        )
        load = GaugeMetricFamily(
            "quire_router_node_load", "Unfinished requests of the node", labels=("node",)
        )
        own = GaugeMetricFamily(
            "quire_router_outstanding", "Unfinished requests of this router", labels=("node",)
        )
        for engine in self._fleet.engines:
            node, label = engine.node, [engine.name]
            alive.add_metric(label, float(node.liveness.is_alive))
            ready.add_metric(label, float(node.liveness.state == "ready"))
            unready.add_metric(label, len(node.unready_models))
            load.add_metric(label, node.load)
            own.add_metric(label, node.num_outstanding)
        yield from (alive, ready, unready, load, own)
        running = GaugeMetricFamily(
            "quire_router_strategy_requests",
            "Requests under a strategy that have no answer yet",
            labels=("strategy", "in_force"),
        )
        for shift in (*self._strategy.leaving, self._strategy.current):
            in_force = str(shift is self._strategy.current).lower()
            running.add_metric([shift.strategy.label, in_force], shift.num_running)
        yield running


class _ProgramCollector(Collector):
    def __init__(self, rescue: ProgramRescue) -> None:
        self._rescue = rescue

    def collect(self) -> Iterator[Metric]:
        kept = GaugeMetricFamily(
            "quire_router_program_records",
            "Programs whose records this router keeps, by their node",
            labels=("node",),
        )
        num_bytes = GaugeMetricFamily(
            "quire_router_program_record_bytes", "Bytes of these records", labels=("node",)
        )
        for reader in self._rescue.readers:
            kept.add_metric([reader.node.name], reader.num_kept)
            num_bytes.add_metric([reader.node.name], reader.num_bytes)
        yield from (kept, num_bytes)
        programs = CounterMetricFamily(
            "quire_router_lost_nodes_programs",
            "Programs of lost nodes, by what became of them",
            labels=("outcome",),
        )
        programs.add_metric(["rescued"], self._rescue.num_rescued)
        programs.add_metric(["lost"], self._rescue.num_lost)
        yield programs
