"""``quire.client.track`` under agent frameworks that need other versions of the client packages
than the other tests: their scripts run in an environment of their own (``make test-clients``)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripted_server import MODEL, RunningServer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
SCRIPTS = Path(__file__).parent / "frameworks"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="the agent frameworks are not installed: run 'make test-clients'"
)


def run(script: str, server: RunningServer) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [PYTHON, SCRIPTS / script, server.url, MODEL],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_calls_of_openai_agents_are_one_program(server: RunningServer) -> None:
    """The package makes each call of a model in an asyncio task of its own."""
    assert run("with_openai_agents.py", server) == {
        "answers": ["The tool said 5.", "streamed", "left", "right"],
        "num_calls": 5,
        "num_threads": 5,
        "name": "tracked-agents",
    }


def test_the_calls_of_a_llama_index_agent_are_one_program(server: RunningServer) -> None:
    assert run("with_llama_index.py", server) == {
        "answers": ["The tool said 5.", "sync", "flow"],
        "num_calls": 4,
        "name": "tracked-index",
    }
