"""The options of ``quire serve`` reach the configurations of server and sandbox, all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cli_invoke import invoke

from quire.core.config import NodeConfig, SandboxConfig, ServerConfig
from quire.core.scheduler_config import PausingConfig

ASKED = {
    "host": ("--host", "::1"),
    "port": ("--port", "0"),
    "allowed_hosts": ("--allowed-host", "node.example"),
    "cors_origins": ("--cors-origin", "https://app.example"),
    "max_body_bytes": ("--max-body-bytes", "1KiB"),
    "max_query_bytes": ("--max-query-bytes", "2KiB"),
    "max_requests": ("--max-requests", "7"),
    "max_connections": ("--max-connections", "70"),
    "head_timeout_s": ("--head-timeout", "0.5"),
    "body_timeout_s": ("--body-timeout", "1.5"),
    "write_timeout_s": ("--write-timeout", "2.5"),
    "drain_timeout_s": ("--drain-timeout", "3.5"),
    "session_ttl_s": ("--session-ttl", "4.5"),
    "max_session_ttl_s": ("--max-session-ttl", "9.5"),
    "response_ttl_s": ("--response-ttl", "5.5"),
    "max_stored_responses": ("--max-stored-responses", "6"),
    "data_dir": ("--data-dir", "kept"),
    "sandbox_upload": ("--no-sandbox",),
    "allow_native_upload": ("--allow-upload",),
    "cluster_key": ("--cluster-key-file", "cluster.key"),
}
EXPECTED = ServerConfig(
    host="::1",
    port=0,
    allowed_hosts=("node.example",),
    cors_origins=("https://app.example",),
    max_body_bytes=1024,
    max_query_bytes=2048,
    max_requests=7,
    max_connections=70,
    head_timeout_s=0.5,
    body_timeout_s=1.5,
    write_timeout_s=2.5,
    drain_timeout_s=3.5,
    session_ttl_s=4.5,
    max_session_ttl_s=9.5,
    response_ttl_s=5.5,
    max_stored_responses=6,
    data_dir=Path("kept"),
    sandbox_upload=False,
    allow_native_upload=True,
    cluster_key="for all",
)

SANDBOX_ASKED = {
    "processes": ("--sandbox-processes", "2"),
    "cache_dir": ("--sandbox-cache-dir", "built"),
    "num_warm": ("--sandbox-warm", "0"),
    "max_upload_bytes": ("--max-upload-bytes", "2MiB"),
    "max_memory_bytes": ("--sandbox-memory", "64MiB"),
    "max_turn_ms": ("--sandbox-turn-ms", "250"),
    "max_cpu_ms": ("--sandbox-cpu-ms", "3000"),
    "max_calls_per_s": ("--sandbox-calls", "500"),
    "max_outstanding_io": ("--sandbox-requests", "0"),
    "hosts": ("--sandbox-host", "*.example.org", "--sandbox-host", "example.com"),
    "allow_private_hosts": ("--sandbox-private-hosts",),
}
PAUSING_ASKED = {
    "above": ("--pause-above", "0.5"),
    "resume_below": ("--resume-below", "0.25"),
    "max_s": ("--max-pause", "7"),
    "max_hold_s": ("--max-hold", "0"),
}
PAUSING_EXPECTED = PausingConfig(above=0.5, resume_below=0.25, max_s=7.0, max_hold_s=0.0)

SANDBOX_EXPECTED = SandboxConfig(
    processes=2,
    cache_dir=Path("built"),
    num_warm=0,
    max_upload_bytes=2 << 20,
    max_memory_bytes=64 << 20,
    max_turn_ms=250,
    max_cpu_ms=3000,
    max_calls_per_s=500,
    max_outstanding_io=0,
    hosts=("*.example.org", "example.com"),
    allow_private_hosts=True,
)


@pytest.fixture
def nodes() -> list[NodeConfig]:
    """The nodes of what ``started`` has started."""
    return []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, nodes: list[NodeConfig]) -> list[ServerConfig]:
    """What a server would have been started with."""
    configs: list[ServerConfig] = []

    def run(node: NodeConfig, server: ServerConfig, **callbacks: object) -> None:
        configs.append(server)
        nodes.append(node)

    monkeypatch.setattr("quire.cli.serve.run_server", run)
    return configs


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``cluster.key`` of the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cluster.key"
    path.write_text("for all\n")
    return path


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("options", "address"),
    [
        ((), None),
        (("--cluster-key-file", "cluster.key"), "tcp://127.0.0.1:0"),
        (("--cluster-key-file", "cluster.key", "--data-host", "::1"), "tcp://[::1]:0"),
    ],
)
def test_engines_of_a_cluster_listen_for_one_another(
    capsys: pytest.CaptureFixture[str],
    nodes: list[NodeConfig],
    key_file: Path,
    options: tuple[str, ...],
    address: str | None,
) -> None:
    ran = invoke(capsys, "serve", *options)
    assert (ran.code, nodes[0].engines[0].data_address) == (0, address), ran.err


@pytest.mark.usefixtures("started", "key_file")
def test_engines_of_a_cluster_send_by_nixl(
    capsys: pytest.CaptureFixture[str], nodes: list[NodeConfig]
) -> None:
    asked = ("--kv-transport", "nixl")
    ran = invoke(capsys, "serve", "--cluster-key-file", "cluster.key", *asked)
    assert (ran.code, nodes[0].engines[0].kv_transport) == (0, "nixl"), ran.err
    ran = invoke(capsys, "serve", *asked)
    assert (ran.code, len(nodes)) == (2, 1)
    assert "--cluster-key-file" in ran.err


def test_a_cluster_key_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], started: list[ServerConfig], key_file: Path
) -> None:
    key_file.write_text(" \n")
    ran = invoke(capsys, "serve", "--cluster-key-file", "cluster.key")
    assert (ran.code, started) == (2, [])
    assert "--cluster-key-file" in ran.err


@pytest.mark.usefixtures("key_file")
def test_every_setting_has_its_option(
    capsys: pytest.CaptureFixture[str], started: list[ServerConfig]
) -> None:
    assert set(ASKED) == {field.name for field in dataclasses.fields(ServerConfig)}
    options = [word for option in ASKED.values() for word in option]
    ran = invoke(capsys, "serve", *options)
    assert (ran.code, started) == (0, [EXPECTED]), ran.err


@pytest.mark.usefixtures("started")
def test_a_load_may_stand_still_for_as_long_as_is_said(
    capsys: pytest.CaptureFixture[str], nodes: list[NodeConfig]
) -> None:
    for options, seconds in (((), 1800.0), (("--load-stall-timeout", "90"), 90.0)):
        assert invoke(capsys, "serve", *options).code == 0
        assert nodes[-1].load_stall_timeout_s == seconds
    for wrong in ("0.5", "nan", "inf"):
        ran = invoke(capsys, "serve", "--load-stall-timeout", wrong)
        assert (ran.code, len(nodes)) == (2, 2), ran.err


@pytest.mark.usefixtures("started")
def test_every_setting_of_the_sandbox_has_its_option(
    capsys: pytest.CaptureFixture[str], nodes: list[NodeConfig]
) -> None:
    assert set(SANDBOX_ASKED) == {field.name for field in dataclasses.fields(SandboxConfig)}
    options = [word for option in SANDBOX_ASKED.values() for word in option]
    ran = invoke(capsys, "serve", *options)
    assert (ran.code, [node.sandbox for node in nodes]) == (0, [SANDBOX_EXPECTED]), ran.err


@pytest.mark.usefixtures("started")
def test_every_setting_of_pauses_has_its_option(
    capsys: pytest.CaptureFixture[str], nodes: list[NodeConfig]
) -> None:
    assert set(PAUSING_ASKED) == {field.name for field in dataclasses.fields(PausingConfig)}
    options = [word for option in PAUSING_ASKED.values() for word in option]
    ran = invoke(capsys, "serve", *options)
    assert (ran.code, [node.scheduler.pausing for node in nodes]) == (0, [PAUSING_EXPECTED])


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--pause-above", "1.5", "--pause-above is 1.5, a share of memory"),
        ("--resume-below", "0.99", "--resume-below is 0.99 and --pause-above 0.95"),
        ("--max-pause", "0", "--max-pause is 0:"),
        ("--max-hold", "nan", "--max-hold is nan:"),
        ("--sandbox-memory", "23MiB", "less than 24 MiB"),
        ("--sandbox-memory", "much", "is not a size"),
        ("--sandbox-processes", "0", "than or equal to 1"),
        ("--sandbox-turn-ms", "0", "than or equal to 1"),
        ("--sandbox-requests", "-1", "than or equal to 0"),
    ],
)
def test_values_with_which_nothing_runs_are_refused(
    capsys: pytest.CaptureFixture[str], nodes: list[NodeConfig], option: str, value: str, words: str
) -> None:
    ran = invoke(capsys, "serve", option, value)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())
    assert nodes == []


def test_without_options_the_defaults_hold(
    capsys: pytest.CaptureFixture[str], started: list[ServerConfig], nodes: list[NodeConfig]
) -> None:
    invoke(capsys, "serve")
    assert started == [ServerConfig()]
    assert [node.sandbox for node in nodes] == [SandboxConfig()]


def test_named_workflows_have_the_encoder_of_a_package_if_none_is_named(
    capsys: pytest.CaptureFixture[str],
    started: list[ServerConfig],
    nodes: list[NodeConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("quire.cli.default_encoders.installed_encoder", lambda: tmp_path)
    workflow = ("--workflow", "advanced-rag")
    for asked in ((), workflow, (*workflow, "--encoder", "other")):
        assert invoke(capsys, "serve", *asked).code == 0
    found = [[(one.source, one.late_interaction) for one in node.encoders] for node in nodes]
    package = str(tmp_path)
    assert found == [[], [(package, False), (package, True)], [("other", False)]]


@pytest.mark.parametrize("option", ["--session-ttl", "--write-timeout", "--body-timeout"])
def test_times_of_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], started: list[ServerConfig], option: str
) -> None:
    assert invoke(capsys, "serve", option, "0").code == 2
    assert started == []
