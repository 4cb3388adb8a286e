"""``quire serve``: a node behind HTTP, built from options."""

from __future__ import annotations

import os
from contextlib import ExitStack

from quire.cli import http_options as ho
from quire.cli import options as o
from quire.cli import program_options as po
from quire.cli import sandbox_options as so
from quire.cli import scheduler_options as sco
from quire.cli.configuration import (
    check_exposure,
    data_address,
    encoder_configs,
    engine_configs,
    tenants,
    with_replicas,
)
from quire.cli.console import messages
from quire.cli.loading import loading_progress
from quire.cli.log_output import configure_logging, errors_of_starting_raised_only
from quire.cli.mcp_servers import read_mcp_servers
from quire.cli.workflow_profiles import read_profiles
from quire.cluster.key_files import read_key
from quire.core.config import (
    ENCODER_CACHE_BYTES,
    SHARED_RESULTS_BYTES,
    TOKEN_CACHE_BYTES,
    EngineConfig,
    NodeConfig,
    SandboxConfig,
    ServerConfig,
)
from quire.core.ids import ModelId
from quire.core.interpreter import collect_seldom, settle, take_short_turns
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.core.scheduler_config import PausingConfig
from quire.programs.workflow.applications import (
    APPLICATIONS,
    Applications,
    find_applications,
)
from quire.programs.workflow.keys import use_keys
from quire.programs.workflow.profiles import use_profiles
from quire.server.serve import run as run_server

_PAUSING = PausingConfig()
_ENGINE = EngineConfig(source="", name=ModelId(""))
_SERVER = ServerConfig()
_SANDBOX = SandboxConfig()
_KEPT = KeptQueriesConfig()


def serve(
    models: o.Sources = None,
    model_name: o.ModelName = None,
    adapter: o.Adapters = None,
    encoder: o.Encoders = None,
    encoder_instances: o.EncoderInstances = None,
    encoder_cache_bytes: o.EncoderCacheBytes = ENCODER_CACHE_BYTES,
    encoder_dtype: o.EncoderDType = "auto",
    token_cache_bytes: o.TokenCacheBytes = TOKEN_CACHE_BYTES,
    shared_results_bytes: o.SharedResultsBytes = SHARED_RESULTS_BYTES,
    tensor_parallel: o.TensorParallel = _ENGINE.tensor_parallel,
    dtype: o.DType = "auto",
    device: o.Device = _ENGINE.device,
    backend: o.Backend = "auto",
    kernel_isa: o.KernelIsa = None,
    weights: o.Weights = "auto",
    num_threads: o.NumThreads = None,
    page_size: o.PageSize = _ENGINE.page_size,
    kv_cache_bytes: o.KvCacheBytes = None,
    host_cache_bytes: o.HostCacheBytes = _ENGINE.host_cache_bytes,
    disk_cache_bytes: o.DiskCacheBytes = _ENGINE.disk_cache_bytes,
    disk_cache_dir: o.DiskCacheDir = None,
    max_model_len: o.MaxModelLen = None,
    max_batch_tokens: o.MaxBatchTokens = _ENGINE.max_batch_tokens,
    max_sequences: o.MaxSequences = _ENGINE.max_sequences,
    policy: sco.Policy = "fcfs",
    policy_thresholds: sco.PolicyThresholds = None,
    policy_quanta: sco.PolicyQuanta = None,
    policy_unit: sco.PolicyUnit = None,
    policy_beta: sco.PolicyBeta = None,
    replicas: sco.Replicas = None,
    balancer: sco.Balancer = "quire",
    priority_scope: sco.PriorityScope = "tenant",
    pause_above: sco.PauseAbove = _PAUSING.above,
    resume_below: sco.ResumeBelow = _PAUSING.resume_below,
    max_pause: sco.MaxPause = _PAUSING.max_s,
    max_hold: sco.MaxHold = _PAUSING.max_hold_s,
    record: o.Record = None,
    data_dir: po.DataDir = None,
    kept_query_ttl_s: po.KeptQueryTtl = _KEPT.ttl_s,
    kept_query_bytes: po.KeptQueryBytes = _KEPT.max_bytes,
    vector_store: po.VectorStore = "exact",
    search: po.Search = None,
    mcp_servers: po.McpServers = None,
    workflow: po.Workflows = None,
    profile: po.Profiles = None,
    host: ho.Host = _SERVER.host,
    port: ho.Port = _SERVER.port,
    allowed_host: ho.AllowedHosts = None,
    cors_origin: ho.CorsOrigins = None,
    max_requests: ho.MaxRequests = _SERVER.max_requests,
    max_body_bytes: ho.MaxBodyBytes = _SERVER.max_body_bytes,
    max_query_bytes: ho.MaxQueryBytes = _SERVER.max_query_bytes,
    max_connections: ho.MaxConnections = _SERVER.max_connections,
    head_timeout: ho.HeadTimeout = _SERVER.head_timeout_s,
    body_timeout: ho.BodyTimeout = _SERVER.body_timeout_s,
    write_timeout: ho.WriteTimeout = _SERVER.write_timeout_s,
    session_ttl: ho.SessionTtl = _SERVER.session_ttl_s,
    max_session_ttl: ho.MaxSessionTtl = _SERVER.max_session_ttl_s,
    response_ttl: ho.ResponseTtl = _SERVER.response_ttl_s,
    max_stored_responses: ho.MaxStoredResponses = _SERVER.max_stored_responses,
    drain_timeout: ho.DrainTimeout = _SERVER.drain_timeout_s,
    api_key: ho.ServerApiKeys = None,
    api_keys_file: ho.ApiKeysFile = None,
    no_auth: ho.Unauthenticated = False,
    cluster_key_file: ho.ClusterKeyFile = None,
    data_host: ho.DataHost = "127.0.0.1",
    kv_transport: ho.KVTransport = "tcp",
    sandbox: so.Sandbox = True,
    sandbox_processes: so.Processes = _SANDBOX.processes,
    sandbox_warm: so.Warm = _SANDBOX.num_warm,
    sandbox_memory: so.Memory = _SANDBOX.max_memory_bytes,
    sandbox_turn_ms: so.TurnMs = _SANDBOX.max_turn_ms,
    sandbox_cpu_ms: so.CpuMs = _SANDBOX.max_cpu_ms,
    sandbox_calls: so.Calls = _SANDBOX.max_calls_per_s,
    sandbox_requests: so.Requests = _SANDBOX.max_outstanding_io,
    sandbox_host: so.Hosts = None,
    sandbox_private_hosts: so.PrivateHosts = False,
    sandbox_cache_dir: so.CacheDir = None,
    max_upload_bytes: so.UploadBytes = _SANDBOX.max_upload_bytes,
    allow_upload: ho.AllowUpload = False,
    otlp_endpoint: o.OtlpEndpoint = None,
    log_level: o.LogLevel = "info",
    log_requests: ho.LogRequests = True,
) -> None:
    """Serve models and programs over HTTP until interrupted.

    The first Ctrl-C (or SIGTERM) lets running work finish, a second one stops at once.

    Examples:

        quire serve

        quire serve ~/models/Qwen3-0.6B --port 8080 --kv-cache-bytes 2GiB

        quire serve big=org/model small=quire-mini --api-key "$(openssl rand -hex 16)"

        quire serve ~/models/Qwen3-0.6B --adapter formal=~/adapters/formal

        quire serve ~/models/Qwen3-0.6B --policy atlas --replicas 2 --balancer autellix

        quire serve --encoder bge=~/models/bge-small --encoder-instances bge=2

        quire serve --encoder ~/models/minilm --workflow naive-rag --workflow mine.py:app

        quire serve ~/models/Qwen3-0.6B --cluster-key-file cluster.key
    """
    configure_logging(log_level, log_requests=log_requests)
    known_tenants = tenants(api_key or (), api_keys_file)
    check_exposure(host, known_tenants, no_auth=no_auth)
    cluster_key = read_key(cluster_key_file, "--cluster-key-file")
    shared = EngineConfig(
        source="",
        name=ModelId(""),
        dtype=dtype,
        device=device,
        backend=backend,
        kernel_isa=kernel_isa,
        weights=weights,
        num_threads=num_threads,
        page_size=page_size,
        kv_cache_bytes=kv_cache_bytes,
        host_cache_bytes=host_cache_bytes,
        disk_cache_bytes=disk_cache_bytes,
        disk_cache_dir=None if disk_cache_dir is None else str(disk_cache_dir.absolute()),
        max_model_len=max_model_len,
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
        data_address=data_address(data_host) if cluster_key is not None or replicas else None,
        kv_transport=kv_transport,
        tensor_parallel=tensor_parallel,
    )
    node = NodeConfig(
        engines=with_replicas(
            engine_configs(models or (), model_name, shared, adapter or ()), replicas or ()
        ),
        encoders=encoder_configs(
            encoder or (), encoder_instances or (), encoder_dtype, token_cache_bytes
        ),
        encoder_cache_bytes=encoder_cache_bytes,
        shared_results_bytes=shared_results_bytes,
        scheduler=sco.scheduler_config(
            policy,
            priority_scope,
            balancer,
            thresholds=policy_thresholds,
            quanta=policy_quanta,
            unit=policy_unit,
            beta=policy_beta,
            pausing=PausingConfig(pause_above, resume_below, max_pause, max_hold),
        ),
        tenants=known_tenants,
        sandbox=SandboxConfig(
            processes=sandbox_processes,
            cache_dir=sandbox_cache_dir,
            num_warm=sandbox_warm,
            max_upload_bytes=max_upload_bytes,
            max_memory_bytes=sandbox_memory,
            max_turn_ms=sandbox_turn_ms,
            max_cpu_ms=sandbox_cpu_ms,
            max_calls_per_s=sandbox_calls,
            max_outstanding_io=sandbox_requests,
            hosts=tuple(sandbox_host) if sandbox_host else None,
            allow_private_hosts=sandbox_private_hosts,
        ),
        record_path=record,
        data_dir=data_dir,
        kept_queries=KeptQueriesConfig(kept_query_ttl_s, kept_query_bytes),
        mcp_servers=read_mcp_servers(mcp_servers, [tenant.id for tenant in known_tenants]),
        otlp_endpoint=otlp_endpoint,
        vector_store=vector_store,
        search=search,
    )
    server = ServerConfig(
        data_dir=data_dir,
        host=host,
        port=port,
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        max_requests=max_requests,
        max_body_bytes=max_body_bytes,
        max_query_bytes=max_query_bytes,
        max_connections=max_connections,
        head_timeout_s=head_timeout,
        body_timeout_s=body_timeout,
        write_timeout_s=write_timeout,
        session_ttl_s=session_ttl,
        max_session_ttl_s=max_session_ttl,
        response_ttl_s=response_ttl,
        max_stored_responses=max_stored_responses,
        drain_timeout_s=drain_timeout,
        sandbox_upload=sandbox,
        allow_native_upload=allow_upload,
        cluster_key=cluster_key,
    )
    _run(node, server, _applications(workflow, profile, node))


def _applications(
    names: list[str] | None, profiles: list[str] | None, node: NodeConfig
) -> Applications | None:
    """None: all that are shipped, as they are."""
    if not names and not profiles:
        return None
    served = read_profiles(profiles or (), node.engines, node.encoders)
    apps = find_applications(names or list(APPLICATIONS))
    for app in apps.values():
        use_profiles(use_keys(app, os.environ), served)
    return Applications.of(apps)


def _run(node: NodeConfig, server: ServerConfig, workflows: Applications | None) -> None:
    names = ", ".join(engine.name for engine in node.engines)

    def listening(url: str) -> None:
        messages().print(f"loading {names} ..., listening on {url}")

    def ready(url: str) -> None:
        starting.close()
        text = f"Quire serves {names} on {url} (OpenAI clients: base_url={url}/v1)"
        messages().print(text)
        if workflows is not None:
            at = f"{url}/v1/workflows/NAME/query"
            messages().print(f"Workflows at POST {at}: {', '.join(workflows)}")
        settle()

    take_short_turns()  # the control thread shares the interpreter with the edge
    collect_seldom()
    with ExitStack() as starting:
        progress = starting.enter_context(loading_progress())
        starting.enter_context(errors_of_starting_raised_only())
        run_server(
            node,
            server,
            workflows=workflows,
            progress=progress,
            on_listening=listening,
            on_ready=ready,
        )
