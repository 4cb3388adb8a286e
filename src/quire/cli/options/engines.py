"""The options of ``quire serve`` about models and encoders, as groups (``options.groups``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.cli.configuration import data_address, encoder_configs, engine_configs, with_replicas
from quire.cli.default_encoders import default_encoders
from quire.cli.options import http as ho
from quire.cli.options import scheduler as sco
from quire.cli.options import shared as o
from quire.cluster.key_files import read_key
from quire.core.config import (
    ENCODER_CACHE_BYTES,
    LOAD_STALL_TIMEOUT_S,
    SHARED_RESULTS_BYTES,
    TOKEN_CACHE_BYTES,
    EncoderConfig,
    EngineConfig,
    KVTransportName,
)
from quire.core.errors import ConfigError
from quire.core.ids import ModelId
from quire.programs.workflow import App

_DEFAULTS = EngineConfig(source="", name=ModelId(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The models and encoders to serve."""

    models: o.Sources = None
    model_name: o.ModelName = None
    adapter: o.Adapters = None
    encoder: o.Encoders = None
    encoder_instances: o.EncoderInstances = None
    encoder_cache_bytes: o.EncoderCacheBytes = ENCODER_CACHE_BYTES
    encoder_dtype: o.EncoderDType = "auto"
    token_cache_bytes: o.TokenCacheBytes = TOKEN_CACHE_BYTES
    shared_results_bytes: o.SharedResultsBytes = SHARED_RESULTS_BYTES
    load_stall_timeout: o.LoadStallTimeout = LOAD_STALL_TIMEOUT_S

    def engines(self, shared: EngineConfig, replicas: sco.Replicas) -> tuple[EngineConfig, ...]:
        """Return one engine for each model; ``shared`` gives all but its source, name and adapters.

        Raises:
            ConfigError: an option names no model, or no number.
        """
        named = engine_configs(self.models or (), self.model_name, shared, self.adapter or ())
        return with_replicas(named, replicas or ())

    def encoders(self, named: Mapping[str, App]) -> tuple[EncoderConfig, ...]:
        """Return the configurations of the encoders. ``named``: the workflows that are named.

        Raises:
            ConfigError: an option names no encoder, or no number.
        """
        needed = [engine for app in named.values() for engine in app.used_engines]
        return encoder_configs(
            self.encoder or default_encoders(needed),
            self.encoder_instances or (),
            self.encoder_dtype,
            self.token_cache_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How every engine runs."""

    tensor_parallel: o.TensorParallel = _DEFAULTS.tensor_parallel
    dtype: o.DType = "auto"
    device: o.Device = _DEFAULTS.device
    backend: o.Backend = "auto"
    kernel_isa: o.KernelIsa = None
    weights: o.Weights = "auto"
    num_threads: o.NumThreads = None
    page_size: o.PageSize = _DEFAULTS.page_size
    kv_cache_bytes: o.KvCacheBytes = None
    host_cache_bytes: o.HostCacheBytes = _DEFAULTS.host_cache_bytes
    disk_cache_bytes: o.DiskCacheBytes = _DEFAULTS.disk_cache_bytes
    disk_cache_dir: o.DiskCacheDir = None
    max_model_len: o.MaxModelLen = None
    max_batch_tokens: o.MaxBatchTokens = _DEFAULTS.max_batch_tokens
    max_sequences: o.MaxSequences = _DEFAULTS.max_sequences

    def shared(self, receives_at: str | None, kv_transport: KVTransportName) -> EngineConfig:
        """Return what the engines of all models have in common. ``receives_at``: where they receive
        K and V; None: they exchange none.

        Raises:
            ConfigError: an option that no engine can have.
        """
        disk = self.disk_cache_dir
        if disk is not None and not disk.is_dir():  # engines would say so, once they are started
            raise ConfigError(f"--disk-cache-dir {disk}: there is no such directory: make it first")
        return EngineConfig(
            source="",
            name=ModelId(""),
            dtype=self.dtype,
            device=self.device,
            backend=self.backend,
            kernel_isa=self.kernel_isa,
            weights=self.weights,
            num_threads=self.num_threads,
            page_size=self.page_size,
            kv_cache_bytes=self.kv_cache_bytes,
            host_cache_bytes=self.host_cache_bytes,
            disk_cache_bytes=self.disk_cache_bytes,
            disk_cache_dir=None if disk is None else str(disk.absolute()),
            max_model_len=self.max_model_len,
            max_batch_tokens=self.max_batch_tokens,
            max_sequences=self.max_sequences,
            data_address=receives_at,
            kv_transport=kv_transport,
            tensor_parallel=self.tensor_parallel,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOptions:
    """How engines exchange K and V with others."""

    cluster_key_file: ho.ClusterKeyFile = None
    data_host: ho.DataHost = "127.0.0.1"
    kv_transport: ho.KVTransport = "tcp"

    def cluster_key(self) -> str | None:
        """Return the cluster's key, if there is one.

        Raises:
            ConfigError: the file cannot be read.
        """
        return read_key(self.cluster_key_file, "--cluster-key-file")

    def receives_at(self, replicas: sco.Replicas) -> str | None:
        """Return where engines receive K and V; None if they receive none."""
        if self.cluster_key_file is None and not replicas:
            return None
        return data_address(self.data_host)
