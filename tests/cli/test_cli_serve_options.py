"""The options of ``quire serve`` reach the server's configuration, every one of them."""

from __future__ import annotations

import dataclasses

import pytest
from cli_invoke import invoke

from quire.core.config import NodeConfig, ServerConfig

ASKED = {
    "host": ("--host", "::1"),
    "port": ("--port", "0"),
    "allowed_hosts": ("--allowed-host", "node.example"),
    "cors_origins": ("--cors-origin", "https://app.example"),
    "max_body_bytes": ("--max-body-bytes", "1KiB"),
    "max_requests": ("--max-requests", "7"),
    "body_timeout_s": ("--body-timeout", "1.5"),
    "write_timeout_s": ("--write-timeout", "2.5"),
    "drain_timeout_s": ("--drain-timeout", "3.5"),
    "session_ttl_s": ("--session-ttl", "4.5"),
    "response_ttl_s": ("--response-ttl", "5.5"),
    "max_stored_responses": ("--max-stored-responses", "6"),
    "sandbox_upload": ("--no-sandbox",),
    "allow_native_upload": ("--allow-upload",),
}
EXPECTED = ServerConfig(
    host="::1",
    port=0,
    allowed_hosts=("node.example",),
    cors_origins=("https://app.example",),
    max_body_bytes=1024,
    max_requests=7,
    body_timeout_s=1.5,
    write_timeout_s=2.5,
    drain_timeout_s=3.5,
    session_ttl_s=4.5,
    response_ttl_s=5.5,
    max_stored_responses=6,
    sandbox_upload=False,
    allow_native_upload=True,
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """What a server would have been started with."""
    configs: list[ServerConfig] = []

    def run(node: NodeConfig, server: ServerConfig, **callbacks: object) -> None:
        configs.append(server)

    monkeypatch.setattr("quire.cli.serve.run_server", run)
    return configs


def test_every_setting_has_its_option(
    capsys: pytest.CaptureFixture[str], started: list[ServerConfig]
) -> None:
    assert set(ASKED) == {field.name for field in dataclasses.fields(ServerConfig)}
    options = [word for option in ASKED.values() for word in option]
    ran = invoke(capsys, "serve", *options)
    assert (ran.code, started) == (0, [EXPECTED]), ran.err


def test_without_options_the_defaults_hold(
    capsys: pytest.CaptureFixture[str], started: list[ServerConfig]
) -> None:
    invoke(capsys, "serve")
    assert started == [ServerConfig()]


@pytest.mark.parametrize("option", ["--session-ttl", "--write-timeout", "--body-timeout"])
def test_times_of_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], started: list[ServerConfig], option: str
) -> None:
    assert invoke(capsys, "serve", option, "0").code == 2
    assert started == []
