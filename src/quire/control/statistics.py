"""The controller's statistics, as frozen values. Owns nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.control.memory.pool_statistics import PoolStatistics
from quire.control.memory.prefix_index import PrefixStatistics
from quire.core.encoding import EncoderKind
from quire.core.ids import EngineId, ModelId


@dataclass(frozen=True, slots=True)
class MessageStatistics:
    """The contents of a message in flight: ``num_decodes`` sequences, each advanced by at most
    ``num_steps`` tokens, and ``num_chunks`` forward rows, with ``num_tokens`` in all."""

    num_decodes: int
    num_chunks: int
    num_tokens: int
    num_steps: int


ExchangeDirection = Literal["sent", "received"]


@dataclass(frozen=True, slots=True)
class ExchangeStatistics:
    """K and V that went to other engines (``sent``) or came from them by ``transport``, since
    start: one of ``kv_transport.Carrier``, several joined by "+", or "" for what has ended before
    any byte went. ``num_done`` transfers are complete, ``num_failed`` are not; ``num_bytes``: of
    both."""

    direction: ExchangeDirection
    transport: str
    num_done: int
    num_failed: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """One engine. ``epoch``: how often it has come up again. ``messages``: those in flight, the
    oldest first.

    ``num_running``: decodes with an open sequence. ``num_waiting``: commands that could go into the
    next message, and begun ones without a sequence. ``num_paused``: programs (each with all
    below it) that are paused now, ``num_pauses``: how often one was; ``num_working_set_blocks``: of
    those that are not. ``num_prefetched``: blocks fetched from the host before a command needed
    them. ``step_s``: average time of a decode step, ``prompt_token_s``: of one token of a prompt.
    ``num_batches``, ``num_rows``, ``num_tokens``: dispatched since start. ``num_generated_tokens``:
    sampled or given to choose from since start, also for commands that were cancelled.
    ``batch_sizes``: number of messages by their number of rows, in the buckets of ``BATCH_BOUNDS``.
    ``exchanged``: K and V between this engine and others, sorted by direction and transport.
    ``num_device_tokens_sent``, ``num_host_tokens_sent``: tokens that others have received from its
    device and from its host memory.
    """

    engine: EngineId
    epoch: int
    model: ModelId
    is_up: bool
    pool: PoolStatistics
    prefix: PrefixStatistics
    num_running: int
    num_waiting: int
    num_in_flight: int
    num_open_sequences: int
    num_tables: int
    num_free_embeds: int
    num_prefetched: int
    num_preemptions: int
    num_paused: int
    num_pauses: int
    num_working_set_blocks: int
    num_batches: int
    num_rows: int
    num_tokens: int
    num_generated_tokens: int
    batch_sizes: tuple[int, ...]
    step_s: float | None
    prompt_token_s: float | None
    messages: tuple[MessageStatistics, ...]
    exchanged: tuple[ExchangeStatistics, ...] = ()
    num_device_tokens_sent: int = 0
    num_host_tokens_sent: int = 0


@dataclass(frozen=True, slots=True)
class InstanceStatistics:
    """One process of an encoder. ``num_batches``, ``num_short_batches`` of them (sent with room
    though others waited), ``num_sequences``, ``num_tokens``: dispatched since start; ``busy_s``:
    total time of its ended batches. ``num_reused_tokens``: tokens whose results it had kept and did
    not compute; ``cache_bytes``: the size of what it keeps now."""

    engine: EngineId
    is_up: bool
    num_in_flight: int
    num_batches: int
    num_short_batches: int
    num_sequences: int
    num_tokens: int
    busy_s: float
    num_reused_tokens: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class EncoderStatistics:
    """One encoder. ``num_waiting``: requests with a sequence that waits for a batch;
    ``num_pending_sequences``: sequences that wait or run."""

    model: ModelId
    kind: EncoderKind
    num_waiting: int
    num_pending_sequences: int
    instances: tuple[InstanceStatistics, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """The whole controller. ``num_pending_commands``: issued and not ended, of all queues;
    ``num_leases``: of all engines."""

    policy: str
    dispatch: str
    num_programs: int
    num_queues: int
    num_pending_commands: int
    num_exports: int
    num_leases: int
    engines: tuple[EngineStatistics, ...]
    encoders: tuple[EncoderStatistics, ...] = ()
