"""``quire serve`` as a process: address, readiness, keys, log lines, signals, bad starts."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from quire.cli.client import NodeClient
from quire.cli.server_process import server_process
from quire.core.errors import EngineLost, Unauthorized
from quire.node import SHIPPED_MODEL, resolve_source

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ONE_THREAD = ("--num-threads", "1")


async def test_a_life_from_start_to_sigterm(tmp_path: Path) -> None:
    """Two models under their own names, a key, an event log; a signal ends it with status 0."""
    log = tmp_path / "events.log"
    arguments = ("a=quire-mini", "b=quire-mini", "--api-key", "secret", "--record", str(log))
    async with server_process((*arguments, *ONE_THREAD, "--page-size", "4")) as server:
        with NodeClient(server.url) as stranger, pytest.raises(Unauthorized):
            stranger.models()
        with NodeClient(server.url, "secret") as node:
            assert [model["id"] for model in node.models()] == ["a", "b"]
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
    _check_replay(log)


def _check_replay(log: Path) -> None:
    ran = _quire("replay", str(log))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the same actions throughout" in ran.stdout


def _quire(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="status 2") as caught:
        async with server_process((str(tmp_path), *ONE_THREAD)):
            raise AssertionError("it has no model to serve")
    assert "config.json" in caught.value.message


def test_a_load_error_is_said_once_and_nothing_is_called_served(tmp_path: Path) -> None:
    shutil.copy(Path(resolve_source(SHIPPED_MODEL)) / "config.json", tmp_path)
    ran = _quire("serve", str(tmp_path), "--port", "0", *ONE_THREAD)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"loading {tmp_path.name} ..., listening on http://127.0.0.1:")
    assert ran.stderr.count("error: ") == 1, ran.stderr
    assert "has no tokenizer.json" in ran.stderr
    assert "Quire serves" not in ran.stderr


def test_nothing_listens_for_a_model_that_is_not_there(tmp_path: Path) -> None:
    """The path is checked before the port is bound: models, adapters and encoders."""
    absent = str(tmp_path / "absent")
    for options in (
        (absent,),
        (str(tmp_path),),
        ("quire-mini", "--adapter", f"formal={absent}"),
        ("--encoder", absent),
    ):
        ran = _quire("serve", *options, "--port", "0", *ONE_THREAD)
        assert ran.returncode == 2
        assert ran.stderr.startswith("error: "), ran.stderr
        assert str(tmp_path) in ran.stderr.replace("\n", "")


def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = _quire("serve", "--port", str(taken.getsockname()[1]))
    assert ran.returncode == 2
    assert "--port" in ran.stderr
    assert "Traceback" not in ran.stderr


async def test_finished_requests_are_json_lines_on_stdout() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "quire.cli",
        "serve",
        *("--port", "0", *ONE_THREAD, "--log-level", "info"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        url = ""
        async for raw in process.stderr:
            line = raw.decode()
            if line.startswith("Quire serves quire-mini on "):
                url = line.split()[4]
                break
            progress = ("loading quire-mini ..., listening on ", "quire-mini: ")  # if it takes long
            assert line.startswith(progress) or "INFO" in line
        async with httpx.AsyncClient() as client:
            body = {"prompt": "Hello", "max_tokens": 2}
            answer = await client.post(f"{url}/v1/completions", json=body)
        assert answer.status_code == 200
        line = json.loads(await process.stdout.readline())
        assert line["outcome"] == "finished"
        assert line["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0
