"""The node's figures as Prometheus series, read at each scrape.

Owns the names. ``vllm:*`` are the names that dashboards already use, with vLLM's meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from quire.control import EngineStatistics
from quire.control.memory.pool_statistics import PoolStatistics
from quire.control.scheduler.timing.batch_sizes import BATCH_BOUNDS
from quire.core.interfaces import ServedModel
from quire.node import EngineReadiness, Node, NodeStatistics, SpanCounts
from quire.server.series.classes import class_series
from quire.server.series.encoders import encoder_series, kept_row_series
from quire.server.series.exchange import exchange_series
from quire.server.series.histograms import buckets
from quire.server.series.sharing import sharing_series
from quire.server.series.speculation import speculation_series

PREFIXES = ("quire_", "vllm:")
MODEL_LABEL = "model_name"
LABELS = (MODEL_LABEL, "engine")

_LATENCIES = (
    ("time_to_first_token_seconds", "Seconds from the arrival of a generation to its first token"),
    ("inter_token_latency_seconds", "Seconds between two tokens of one generation"),
    ("e2e_request_latency_seconds", "Seconds from the arrival of a generation to its end"),
)


class NodeCollector(Collector):
    """Reads ``node`` at every scrape; labels an engine by its model and its id."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def describe(self) -> list[Metric]:
        """Return nothing: the node cannot be read before it has started."""
        return []

    def collect(self) -> Iterator[Metric]:
        statistics = self._node.statistics()
        yield from _node_gauges(statistics)
        yield from _engine_series(statistics.controller.engines)
        yield _cache_sizes(statistics.controller.engines, self._node.models())
        yield _batch_sizes(statistics.controller.engines)
        yield from _latencies(statistics)
        yield from exchange_series(statistics.controller.engines)
        yield from class_series(statistics.classes)
        yield from encoder_series(statistics.controller.encoders)
        yield from kept_row_series(statistics.kept_rows)
        yield from sharing_series(statistics.sharing)
        yield from speculation_series(statistics.speculation)


def _node_gauges(statistics: NodeStatistics) -> Iterator[Metric]:
    controller = statistics.controller
    yield from (
        GaugeMetricFamily(f"quire_{name}", help_, value=value)
        for name, help_, value in (
            (
                "programs_running",
                "Programs launched at /v1/programs that have not ended; requests are quire_calls",
                statistics.num_programs_running,
            ),
            ("sessions", "Open sessions, idle ones included", statistics.num_sessions),
            ("calls", "Requests under way, those that wait included", statistics.num_calls),
            (
                "processes",
                "Programs in the process table: inferlets, sessions and workflows",
                controller.num_programs,
            ),
            (
                "pending_commands",
                "Commands of all programs that have not ended",
                controller.num_pending_commands,
            ),
            ("exports", "Named exports of KV pages", controller.num_exports),
            (
                "leases",
                "Leases between nodes that wait for K and V, or hold them",
                controller.num_leases,
            ),
            ("uptime_seconds", "Seconds since the node started", statistics.uptime_s),
        )
    )
    ready = GaugeMetricFamily(
        "quire_engine_ready", "1 while the engine is ready, else 0", labels=["engine"]
    )
    restarts = CounterMetricFamily(
        "quire_engine_restarts",
        "How often the engine's process was started again",
        labels=["engine"],
    )
    for engine, health in statistics.health.engines.items():
        ready.add_metric([engine], float(health.state is EngineReadiness.READY))
        restarts.add_metric([engine], health.restarts)
    yield ready
    yield restarts
    ended = CounterMetricFamily(
        "quire_programs_ended",
        "Ended programs, by form and outcome",
        labels=["form", "outcome"],
    )
    for (form, outcome), count in sorted(statistics.ended_programs.items()):
        ended.add_metric([form, outcome], count)
    yield ended
    yield _spans(statistics.spans or SpanCounts())


def _spans(counts: SpanCounts) -> Metric:
    family = CounterMetricFamily(
        "quire_spans", "Spans for the OpenTelemetry collector, by outcome", labels=["outcome"]
    )
    family.add_metric(["sent"], counts.num_sent)
    family.add_metric(["failed"], counts.num_failed)
    family.add_metric(["dropped"], counts.num_dropped)
    return family


_GAUGES: tuple[tuple[str, str, Callable[[EngineStatistics], float]], ...] = (
    (
        "num_requests_running",
        "Generations that have a sequence in the engine",
        lambda e: e.num_running,
    ),
    (
        "num_requests_waiting",
        "Commands that wait to be sent to the engine",
        lambda e: e.num_waiting,
    ),
    (
        "kv_cache_usage_perc",
        "Share of the device's KV blocks in use, from 0 to 1",
        lambda e: _usage(e.pool),
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[EngineStatistics], float]], ...] = (
    (
        "prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache",
        lambda e: e.prefix.num_query_tokens,
    ),
    (
        "prefix_cache_hits",
        "Prompt tokens that were found in the prefix cache",
        lambda e: e.prefix.num_hit_tokens,
    ),
    (
        "generation_tokens",
        "Tokens generated for requests and programs, also for those that were cancelled",
        lambda e: e.num_generated_tokens,
    ),
    (
        "num_preemptions",
        "Generations that were interrupted to free memory",
        lambda e: e.num_preemptions,
    ),
)
_OWN_GAUGES: tuple[tuple[str, str, Callable[[EngineStatistics], float]], ...] = (
    ("kv_blocks", "KV blocks of the device", lambda e: e.pool.num_blocks),
    ("kv_blocks_free", "KV blocks of the device that hold nothing", lambda e: e.pool.num_free),
    (
        "kv_blocks_cached",
        "KV blocks of the device that the prefix cache alone holds",
        lambda e: e.pool.num_cached,
    ),
    (
        "host_blocks_free",
        "KV blocks of the host tier that hold nothing",
        lambda e: e.pool.num_host_free,
    ),
    ("host_blocks", "KV blocks of the host tier", lambda e: e.pool.num_host_blocks),
    (
        "host_blocks_cached",
        "KV blocks of the host tier that the prefix cache alone holds",
        lambda e: e.pool.num_host_cached,
    ),
    (
        "disk_blocks_free",
        "KV blocks of the disk tier that hold nothing",
        lambda e: e.pool.num_disk_free,
    ),
    ("disk_blocks", "KV blocks of the disk tier", lambda e: e.pool.num_disk_blocks),
    (
        "disk_blocks_cached",
        "KV blocks of the disk tier that the prefix cache alone holds",
        lambda e: e.pool.num_disk_cached,
    ),
    (
        "disk_writable",
        "1 while pages may go to the disk tier, 0 for a while after a fault and without one",
        lambda e: float(e.pool.is_disk_open and e.pool.num_disk_blocks > 0),
    ),
    (
        "transfers_in_flight",
        "KV blocks that are being moved between device, host and disk",
        lambda e: e.pool.num_transfers,
    ),
    (
        "batches_in_flight",
        "Batch messages that the engine has not answered",
        lambda e: e.num_in_flight,
    ),
    (
        "programs_paused",
        "Programs that are paused until there is room for them",
        lambda e: e.num_paused,
    ),
    (
        "working_set_blocks",
        "KV blocks that the programs that are not paused work on",
        lambda e: e.num_working_set_blocks,
    ),
)
_OWN_COUNTERS: tuple[tuple[str, str, Callable[[EngineStatistics], float]], ...] = (
    ("batches", "Batch messages sent to the engine", lambda e: e.num_batches),
    (
        "batch_tokens",
        "Tokens sent to the engine: of prompts, and one for each decode step",
        lambda e: e.num_tokens,
    ),
    ("program_pauses", "How often programs were paused", lambda e: e.num_pauses),
    (
        "swapped_out_blocks",
        "KV blocks moved from the device to the host",
        lambda e: e.pool.num_swapped_out,
    ),
    ("swapped_in_blocks", "KV blocks moved back to the device", lambda e: e.pool.num_swapped_in),
    (
        "swapped_out_bytes",
        "Bytes of K and V moved from the device to the host",
        lambda e: _bytes(e.pool, e.pool.num_swapped_out),
    ),
    (
        "swapped_in_bytes",
        "Bytes of K and V moved back to the device",
        lambda e: _bytes(e.pool, e.pool.num_swapped_in),
    ),
    (
        "demoted_blocks",
        "Blocks of the prefix cache moved from the device to the host",
        lambda e: e.pool.num_demoted,
    ),
    ("disk_written_blocks", "Blocks written to the disk tier", lambda e: e.pool.num_disk_written),
    ("disk_read_blocks", "Blocks read from the disk tier", lambda e: e.pool.num_disk_read),
    (
        "disk_failed_writes",
        "Blocks that could not be written to the disk tier and stayed where they were",
        lambda e: e.pool.num_failed_writes,
    ),
    (
        "disk_failed_reads",
        "Blocks that could not be read from the disk tier, or were not what was written",
        lambda e: e.pool.num_failed_reads,
    ),
    (
        "prefetched_blocks",
        "Blocks moved back to the device before their programs called",
        lambda e: e.num_prefetched,
    ),
    (
        "prefix_host_hits",
        "Prompt tokens that were found on the host or the disk",
        lambda e: e.prefix.num_host_hit_tokens,
    ),
    ("prefix_evictions", "Pages dropped from the prefix cache", lambda e: e.prefix.num_evicted),
)


def _bytes(pool: PoolStatistics, num_blocks: int) -> float:
    return num_blocks * pool.bytes_per_block


def _usage(pool: PoolStatistics) -> float:
    return pool.num_held / pool.num_blocks if pool.num_blocks else 0.0


def _engine_series(engines: Sequence[EngineStatistics]) -> Iterator[Metric]:
    """Yield one series per engine and name; an engine that is down shows its last figures."""
    for prefixes, kind, series in (
        (PREFIXES, GaugeMetricFamily, _GAUGES),
        (PREFIXES, CounterMetricFamily, _COUNTERS),
        (PREFIXES[:1], GaugeMetricFamily, _OWN_GAUGES),
        (PREFIXES[:1], CounterMetricFamily, _OWN_COUNTERS),
    ):
        for prefix in prefixes:
            for name, help_, value in series:
                family = kind(prefix + name, help_, labels=LABELS)
                for engine in engines:
                    family.add_metric([engine.model, engine.engine], value(engine))
                yield family


def _cache_sizes(engines: Sequence[EngineStatistics], models: Sequence[ServedModel]) -> Metric:
    """Return the metric from whose labels load balancers for vLLM read the sizes of an engine's
    cache."""
    family = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Sizes of the KV cache: tokens per block, and blocks of the device",
        labels=(*LABELS, "block_size", "num_gpu_blocks"),
    )
    block_sizes = {model.id: model.info.pool.page_size for model in models}
    for engine in engines:
        sizes = [str(block_sizes.get(engine.model, "")), str(engine.pool.num_blocks)]
        family.add_metric([engine.model, engine.engine, *sizes], 1)
    return family


def _batch_sizes(engines: Sequence[EngineStatistics]) -> Metric:
    family = HistogramMetricFamily(
        "quire_batch_size", "Rows of a batch message: decodes and chunks of prompts", labels=LABELS
    )
    for engine in engines:
        found = buckets(BATCH_BOUNDS, engine.batch_sizes)
        family.add_metric([engine.model, engine.engine], found, engine.num_rows)
    return family


def _latencies(statistics: NodeStatistics) -> Iterator[Metric]:
    models = {one.engine: one.model for one in statistics.controller.engines}
    for prefix in PREFIXES:
        families = [
            HistogramMetricFamily(prefix + name, help_, labels=LABELS) for name, help_ in _LATENCIES
        ]
        for engine, found in statistics.latencies.items():
            model = models[engine]
            snapshots = (found.time_to_first_token, found.inter_token, found.request)
            for family, snapshot in zip(families, snapshots, strict=True):
                family.add_metric(
                    [model, engine], buckets(snapshot.bounds_s, snapshot.counts), snapshot.sum_s
                )
        yield from families
