"""Configuration as frozen values, with defaults for a laptop. Only the CLI reads the environment
and files; it builds these."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from quire.core.errors import ConfigError
from quire.core.ids import ModelId, TenantId
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.core.mcp_config import McpServerConfig
from quire.core.quotas import Quotas
from quire.core.scheduler_config import SchedulerConfig

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
WeightsName = Literal["auto", "float8", "int8"]
KVTransportName = Literal["tcp", "nixl"]

DEFAULT_CACHE_BYTES = 256 << 20
"""The default size of the KV cache: an amount that a laptop can spare."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A LoRA adapter to load with a model. ``source``: a directory in PEFT's format.

    ``is_needed``: the engine does not start without it, as at the first start. Otherwise a failed
    adapter keeps its index, and ``AdapterInfo.problem`` states why it cannot be used.
    """

    name: str
    source: str
    is_needed: bool = True

    def __post_init__(self) -> None:
        if not self.name or not self.source:
            raise ConfigError(
                f"adapter {self.name!r} from {self.source!r}: an adapter needs a name and a "
                "directory"
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One model, on one engine or on ``replicas`` engines alike.

    ``source``: a Hugging Face directory or hub id. ``kv_cache_bytes``: device memory for pages;
    None: ``DEFAULT_CACHE_BYTES``, on the CUDA backend most of the memory that the weights leave
    free. ``host_cache_bytes``: the tier that the pages of preempted and idle programs are swapped
    to; ``disk_cache_bytes``: the tier below that one, a file in ``disk_cache_dir``, 0 for none.
    ``backend``: torch, cpu or cuda; ``auto`` takes the fastest that can run the model here.
    ``kernel_isa``: the CPU kernel's instruction set (None: the best that this machine has).
    ``batch_invariant``: a row's results do not depend, bit for bit, on the other rows of its batch.
    ``weights``: float8 (cuda backend) and int8 (cpu backend) quantise projections while loading;
    auto keeps the checkpoint's format where the backend has a matrix product for it.
    ``replicas``: engines, each a process with weights and memory of its own, which share the
    model's calls. ``tensor_parallel``: processes of this host that share one engine; cache sizes
    are per process.
    ``adapters``: LoRA adapters that rows may be run with; each is also served under its own name.
    ``data_address``: "tcp://HOST:PORT" at which other engines send K and V to this one (port 0: any
    free one); None: it exchanges none. ``kv_transport``: nixl sends them through NIXL to engines
    that have it too.
    """

    source: str
    name: ModelId
    dtype: DTypeName = "auto"
    device: str = "auto"
    page_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    host_cache_bytes: int = 256 << 20
    disk_cache_bytes: int = 0
    disk_cache_dir: str | None = None
    num_embeds: int = 4096
    num_token_slots: int = 1024
    max_sequences: int = 256
    max_batch_tokens: int = 512
    max_model_len: int | None = None
    num_threads: int | None = None
    backend: str = "auto"
    kernel_isa: str | None = None
    batch_invariant: bool = False
    weights: WeightsName = "auto"
    replicas: int = 1
    tensor_parallel: int = 1
    seed: int = 0
    adapters: tuple[AdapterConfig, ...] = ()
    data_address: str | None = None
    kv_transport: KVTransportName = "tcp"

    def __post_init__(self) -> None:
        if not 1 <= self.page_size <= 64:
            raise ConfigError(
                f"page_size is {self.page_size}; a page has 1 to 64 slots: choose e.g. 16"
            )
        if self.max_batch_tokens < 1 or self.max_sequences < 1:
            raise ConfigError(
                f"max_batch_tokens is {self.max_batch_tokens} and max_sequences "
                f"{self.max_sequences}: choose at least 1 for each"
            )
        if self.kv_transport != "tcp" and self.data_address is None:
            raise ConfigError(
                f"kv_transport is {self.kv_transport}, and this engine exchanges no K and V: give "
                "the node a cluster key (--cluster-key-file) or --replicas, or leave it out"
            )
        self._check_disk()
        if not 1 <= self.replicas <= 64:
            raise ConfigError(f"replicas is {self.replicas}; 1 to 64 engines can serve a model")
        if not 1 <= self.tensor_parallel <= 64:
            raise ConfigError(
                f"tensor_parallel is {self.tensor_parallel}; 1 to 64 ranks can share a model"
            )

    def _check_disk(self) -> None:
        if self.disk_cache_bytes < 0:
            raise ConfigError(f"disk_cache_bytes is {self.disk_cache_bytes}: choose 0 or more")
        if bool(self.disk_cache_bytes) != (self.disk_cache_dir is not None):
            raise ConfigError(
                f"disk_cache_bytes is {self.disk_cache_bytes} and disk_cache_dir "
                f"{self.disk_cache_dir}: give both, or neither"
            )
        if self.disk_cache_bytes and self.tensor_parallel > 1:
            raise ConfigError(
                f"disk_cache_bytes is {self.disk_cache_bytes} with tensor_parallel "
                f"{self.tensor_parallel}: the ranks of a group keep no pages on a disk, so leave "
                "it out"
            )

    def again(self) -> EngineConfig:
        """The configuration for a restart: a missing adapter no longer prevents the start."""
        return replace(self, adapters=tuple(replace(a, is_needed=False) for a in self.adapters))


TOKEN_CACHE_BYTES = 128 << 20
"""The default size of an encoder process's token cache."""


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """An embedding model or cross-encoder in a process of its own.

    ``source``: a Hugging Face or sentence-transformers directory, or a hub id.
    ``late_interaction``: an embedding model scores pairs by the vectors of their tokens instead of
    embedding texts; ``also_scores``: it does both. ``token_cache_bytes``: token vectors that a
    process keeps. ``max_batch_tokens`` bounds a batch. ``max_pending`` bounds the waiting sequences
    of one tenant; more are refused. ``instances``: processes that each hold the model and share its
    batches, with ``num_threads`` each.
    """

    source: str
    name: ModelId
    late_interaction: bool = False
    also_scores: bool = False
    token_cache_bytes: int = TOKEN_CACHE_BYTES
    dtype: DTypeName = "auto"
    device: str = "auto"
    num_threads: int | None = None
    max_batch_tokens: int = 8192
    max_pending: int = 8192
    instances: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= 64:
            raise ConfigError(f"encoder {self.name}: {self.instances} instances: choose 1 to 64")
        if self.max_batch_tokens < 1 or self.max_pending < 1:
            raise ConfigError(
                f"encoder {self.name}: max_batch_tokens is {self.max_batch_tokens} and max_pending "
                f"{self.max_pending}: choose at least 1 for each"
            )
        if self.token_cache_bytes < 0:
            raise ConfigError(
                f"encoder {self.name}: token_cache_bytes is {self.token_cache_bytes}: choose 0 or "
                "more"
            )

    @property
    def scores_pairs(self) -> bool:
        """Whether it scores pairs by the vectors of their tokens."""
        return self.late_interaction or self.also_scores

    def again(self) -> EncoderConfig:
        """The configuration for a restart."""
        return self


@dataclass(frozen=True, slots=True)
class TenantTotals:
    """Bounds on all programs of one tenant together, sessions included.

    A quota bounds one program, and a tenant may have many. The defaults let ordinary use pass and
    keep the node's memory for one tenant below about 4 GiB, whatever its programs do.
    """

    max_queues: int = 1 << 17
    max_pending_commands: int = 1 << 18
    max_pages: int = 1 << 22
    max_embeds: int = 1 << 20
    max_exports: int = 1 << 16
    max_exported_pages: int = 1 << 22
    max_leases: int = 1 << 12
    max_leased_pages: int = 1 << 20

    def __post_init__(self) -> None:
        for total in fields(self):
            value = getattr(self, total.name)
            if value < 0:
                raise ConfigError(f"{total.name} of a tenant's totals is {value}: choose 0 or more")


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """A tenant, its API keys and its share. ``weight``: relative share under contention.
    ``quotas`` bound each of its programs, ``totals`` all of them together. ``search``: what it
    searches instead of the node's ``search``; no other tenant does."""

    id: TenantId
    api_keys: tuple[str, ...] = ()
    weight: float = 1.0
    quotas: Quotas = Quotas()
    totals: TenantTotals = TenantTotals()
    search: str | None = field(default=None, repr=False)  # it may have a password


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """``tenants``: if empty or without keys, no API key is required (bind to loopback only).

    ``max_query_bytes`` bounds the body of a workflow's query, which may hold documents;
    ``max_body_bytes`` that of any other request. ``head_timeout_s`` bounds the arrival of its head,
    ``body_timeout_s`` that of its body, ``write_timeout_s`` each write to a slow reader.
    ``max_connections``: clients that may be connected, with or without a request (None: as many as
    the limit of open files allows). An idle session ends after ``session_ttl_s``, or after the time
    that its client has chosen for it, at most ``max_session_ttl_s``. A stored
    response is kept for ``response_ttl_s`` after its last use, at most ``max_stored_responses`` per
    tenant. ``data_dir``: where files and batches are kept (None: a temporary directory, removed
    with the server). Uploaded source runs in the sandbox, or (``sandbox_upload`` off) is refused;
    ``allow_native_upload`` runs it with the rights of this process instead, which requires clients
    that are trusted with them. ``cluster_key``: shared by the nodes that exchange K and V with
    one another (None: this one exchanges none).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    max_query_bytes: int = 16 << 20
    max_requests: int = 1024
    max_connections: int | None = None
    head_timeout_s: float = 15.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    session_ttl_s: float = 600.0
    max_session_ttl_s: float = 86_400.0
    response_ttl_s: float = 3600.0
    max_stored_responses: int = 1024
    data_dir: Path | None = None
    sandbox_upload: bool = True
    allow_native_upload: bool = False
    cluster_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.max_session_ttl_s < self.session_ttl_s:
            raise ConfigError(
                f"idle sessions end after {self.session_ttl_s:g} s, and clients may choose at most "
                f"{self.max_session_ttl_s:g} s: raise --max-session-ttl or lower --session-ttl"
            )


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """Where programs run that are not trusted, and what one of them may use.

    ``processes``: runtime processes, started at the first launch. ``cache_dir``: where built files
    are kept (None: ``~/.cache/quire``). ``num_warm``: instances per process that are kept ready for
    a launch. ``max_turn_ms``: processor time between two awaits; ``max_cpu_ms``: in total.
    ``hosts``: the hosts that manifests may ask for (None: any); private addresses are refused
    unless ``allow_private_hosts``.
    """

    processes: int = 1
    cache_dir: Path | None = None
    num_warm: int = 4
    max_upload_bytes: int = 1 << 20
    max_memory_bytes: int = 256 << 20
    max_turn_ms: int = 1000
    max_cpu_ms: int = 60_000
    max_calls_per_s: int = 20_000
    max_outstanding_io: int = 16
    hosts: tuple[str, ...] | None = None
    allow_private_hosts: bool = False

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ConfigError(f"{self.processes} sandbox processes: choose at least 1")


ENCODER_CACHE_BYTES = 64 << 20
"""The default of ``NodeConfig.encoder_cache_bytes``."""


LOAD_STALL_TIMEOUT_S = 1800.0
"""The default of ``NodeConfig.load_stall_timeout_s``. The longest time known without progress is
that of the first build of the CPU kernel, about 1,000 s on a machine with much else to do."""

SHARED_RESULTS_BYTES = 16 << 20
"""The default of ``NodeConfig.shared_results_bytes``."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node: its engines, scheduler, tenants. ``record_path``: the file of the event log.

    ``data_dir``: where the programs' store is kept (None: in memory, lost with the node).
    ``mcp_servers``: those that the node runs for its programs; names are unique.
    ``otlp_endpoint``: the HTTP address of the collector that spans are sent to.
    ``vector_store``: what keeps programs' vectors: ``exact`` (memory), ``lance`` (LanceDB, in
    ``data_dir``), or the address of a PostgreSQL database with pgvector. ``search``: what programs
    search: a directory of files, or the address of a SearXNG server (http://... or https://...).
    ``encoder_cache_bytes``: of rows that encoders have computed for programs; 0 keeps none.
    ``kept_queries``: of workflows, in ``data_dir``. ``shared_results_bytes``: of results of
    workflows' pure primitives, for equal ones of the same tenant; 0 keeps none.
    ``load_stall_timeout_s``: an engine or encoder that makes no progress while it loads is started
    again after this time.
    """

    engines: tuple[EngineConfig, ...]
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    tenants: tuple[TenantConfig, ...] = field(
        default_factory=lambda: (TenantConfig(TenantId("default")),)
    )
    engine_process: bool = True
    sandbox: SandboxConfig = SandboxConfig()
    record_path: Path | None = None
    data_dir: Path | None = None
    encoders: tuple[EncoderConfig, ...] = ()
    mcp_servers: tuple[McpServerConfig, ...] = ()
    otlp_endpoint: str | None = None
    vector_store: str = field(default="exact", repr=False)  # it may have a password
    search: str | None = field(default=None, repr=False)  # it may have a password, too
    encoder_cache_bytes: int = ENCODER_CACHE_BYTES
    kept_queries: KeptQueriesConfig = field(default_factory=KeptQueriesConfig)
    shared_results_bytes: int = SHARED_RESULTS_BYTES
    load_stall_timeout_s: float = LOAD_STALL_TIMEOUT_S

    def __post_init__(self) -> None:
        names = [str(engine.name) for engine in self.engines]
        names += [adapter.name for engine in self.engines for adapter in engine.adapters]
        names += [str(encoder.name) for encoder in self.encoders]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(
                f"{', '.join(twice)}: several models, adapters or encoders have this name: name "
                "one NAME=SOURCE"
            )
        if self.encoder_cache_bytes < 0:
            raise ConfigError(
                f"encoder_cache_bytes is {self.encoder_cache_bytes}: choose 0 or more"
            )
        if not 0 < self.load_stall_timeout_s < float("inf"):
            raise ConfigError(
                f"load_stall_timeout_s is {self.load_stall_timeout_s:g}: choose a number above 0"
            )
        if self.shared_results_bytes < 0:
            raise ConfigError(
                f"shared_results_bytes is {self.shared_results_bytes}: choose 0 or more"
            )
        servers = [server.name for server in self.mcp_servers]
        if len(set(servers)) != len(servers):
            raise ConfigError(
                f"two MCP servers have the same name, of {sorted(servers)}: rename one"
            )
