"""``quire router``: its options reach the configuration; as a process it serves a node's API."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import openai
import pytest
from cli_invoke import invoke

from quire.cluster.config import RouterConfig
from quire.core.config import ServerConfig, TenantConfig

Capture = pytest.CaptureFixture[str]
Started = list[tuple[RouterConfig, ServerConfig]]

NODES = ("--node", "http://one:1", "--node", "b=https://two/v1")
_ADDRESS = re.compile(r"on (http://[\w.]+:\d+) ")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What a router would have been started with."""
    configs: Started = []

    def run(router: RouterConfig, server: ServerConfig, **callbacks: object) -> None:
        configs.append((router, server))

    monkeypatch.setattr("quire.cli.router.run_router", run)
    return configs


def test_every_option_has_its_place(capsys: Capture, started: Started, tmp_path: Path) -> None:
    for name in ("node", "cluster", "admin"):
        (tmp_path / name).write_text(f"{name}-key\n")
    ran = invoke(
        capsys, "router", *NODES, "--strategy", "cache_aware", "--strategy-option", "max_extra=3",
        "--node-key-file", str(tmp_path / "node"), "--cluster-key-file", str(tmp_path / "cluster"),
        "--admin-key-file", str(tmp_path / "admin"), "--api-key", "k", "--probe-interval", "0.5",
        "--probe-timeout", "1.5", "--resume", "--host", "::1", "--port", "0",
        "--allowed-host", "router.example",
        "--max-requests", "7", "--max-body-bytes", "1KiB", "--max-query-bytes", "2KiB",
        "--max-connections", "70",
        "--head-timeout", "0.5", "--body-timeout", "1.5", "--write-timeout", "2.5",
        "--drain-timeout", "3.5",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    ((router, server),) = started
    assert [(one.name, one.url) for one in router.nodes] == [
        ("one:1", "http://one:1"),
        ("b", "https://two:443"),
    ]
    assert (router.strategy.name, router.strategy.options) == ("cache_aware", {"max_extra": 3})
    keys = (router.node_key, router.cluster_key, router.admin_key)
    assert keys == ("node-key", "cluster-key", "admin-key")
    assert router.tenants == (TenantConfig(router.tenants[0].id, ("k",)),)
    assert router.resumes
    assert (router.times.interval_s, router.times.timeout_s) == (0.5, 1.5)
    assert server == ServerConfig(
        host="::1", port=0, allowed_hosts=("router.example",), max_requests=7, max_body_bytes=1024,
        max_query_bytes=2048,
        max_connections=70, head_timeout_s=0.5, body_timeout_s=1.5, write_timeout_s=2.5,
        drain_timeout_s=3.5,
    )  # fmt: skip


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--node", "one:1"), "is not the address of a node"),
        (("--node", "ftp://one"), "is not the address of a node"),
        (("--node", "http://u:p@one"), "--node-key-file"),
        (("--node", "http://one/api"), "nodes have none"),
        (("--node", "http://one:x"), "is not the address of a node"),
        (("--node", "http://one:1", "--node", "http://one:1/v1"), "name each node once"),
        (("--node", "a=http://one:1", "--node", "a=http://two:1"), "name each node once"),
        (("--node", "a=http://one:1", "--node", "b=http://one:1"), "name each node once"),
        ((*NODES, "--strategy", "other"), "cache_aware"),
        ((*NODES, "--strategy", "none.py:route"), "cannot be read"),
        ((*NODES, "--strategy-option", "x"), "NAME=VALUE"),
        ((*NODES, "--strategy-option", "x=1", "--strategy-option", "x=2"), "twice"),
        ((*NODES, "--admin-key-file", "none"), "cannot be read"),
        ((*NODES, "--cluster-key-file", "/dev/null"), "openssl rand"),
        ((*NODES, "--host", "0.0.0.0"), "--no-auth"),
        ((*NODES, "--resume"), "--cluster-key-file"),
        ((), "--node"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    capsys: Capture, arguments: tuple[str, ...], said: str
) -> None:
    ran = invoke(capsys, "router", *arguments)
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_a_life_from_start_to_sigterm(shipped_server: str, tmp_path: Path) -> None:
    strategy = tmp_path / "mine.py"
    strategy.write_text(
        "async def route(request, engines):\n    return await engines[0].send(request)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire.cli", "router", "--node", shipped_server, "--port", "0",
        "--strategy", f"{strategy}:route", "--probe-timeout", "60",
        stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stderr is not None
    url = None
    async for line in process.stderr:
        if found := _ADDRESS.search(line.decode()):
            url = found[1]
            break
    assert url is not None
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="quire-mini",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=4,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        models = await client.models.list()
        assert [model.id for model in models.data] == ["quire-mini"]
    process.send_signal(signal.SIGTERM)
    await process.stderr.read()
    assert await process.wait() == 0
