"""Starts nodes and routers that share a key, as processes of this machine."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.http.servers import Server, free_port, on_core

MODEL = "m"
"""What the nodes call their model."""


def new_key(scratch: Path) -> Path:
    """Write a new key to a file that only its owner can read; return the file."""
    path = scratch / "cluster.key"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


def start_node(
    directory: Path,
    key_file: Path,
    dtype: str,
    num_threads: int,
    *options: str,
    core: int | None = None,
) -> Server:
    """Start a node that serves the model of ``directory`` on ``core``, None: on any core."""
    port = free_port()
    command = [sys.executable, "-m", "quire.cli", "serve", str(directory), "--port", str(port)]
    command += ["--model-name", MODEL, "--dtype", dtype, "--num-threads", str(num_threads)]
    command += ["--cluster-key-file", str(key_file), "--no-log-requests"]
    with on_core(core):
        return Server([*command, *options], port, "/ready")


def start_router(nodes: Sequence[Server], strategy: str, *options: str) -> Server:
    """Start a router before ``nodes``; ``options`` are further ones of ``quire router``."""
    port = free_port()
    command = [sys.executable, "-m", "quire.cli", "router", "--strategy", strategy]
    for number, node in enumerate(nodes):
        command += ["--node", f"node-{number}={node.url}"]
    command += ["--port", str(port), "--no-log-requests"]
    return Server([*command, *options], port, "/ready")
