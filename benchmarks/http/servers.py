"""Starts servers as a user would, each in its own processes: ``quire serve`` and its peers.

Owns the process, the wait until it is ready, and its end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from benchmarks.peers.catalog import (
    MAX_MODEL_LEN,
    MAX_SEQUENCES,
    model_directory,
    peer_python,
    vllm_environment,
)
from benchmarks.process_memory import pss_bytes
from benchmarks.process_time import cpu_s

_POLL_S = 0.005
_SHOWN_LINES = 15
_VLLM_START_S = 900.0
"""Its first start with a model compiles it, which takes minutes on a busy machine."""


class ServerFailed(Exception):
    """The server has ended or was not ready in time; the message contains its last output."""


class Server:
    """A running server. ``ready_s``: from its start until it answered ``path`` with 200."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        path: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        started_s = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=_environment(environment or {}),
            start_new_session=True,
        )
        try:
            while not self._answers(path):
                if self._process.poll() is not None or time.perf_counter() - started_s > timeout_s:
                    raise ServerFailed(self._last_words())
                time.sleep(_POLL_S)
        except KeyboardInterrupt:  # no context has been entered that would end it
            self.close()
            raise
        self.ready_s = time.perf_counter() - started_s

    @property
    def completions_url(self) -> str:
        return f"{self.url}/v1/completions"

    def pss_bytes(self) -> int:
        return pss_bytes(self._process.pid)

    def cpu_s(self) -> float:
        """Return the processor time of its processes since its start, in seconds."""
        return cpu_s(self._process.pid)

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _last_words(self) -> str:
        self.close()
        return f"the server did not become ready; it last said:\n{self._said}"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.seek(0)
        self._said = "\n".join(self._log.read().splitlines()[-_SHOWN_LINES:])
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server. Lets Python write compiled modules, which every start would
    otherwise compile again."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **changes}


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Let what is started within run on ``core`` alone; None: on any core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def start_quire(model: str, cache: Path, *options: str) -> Server:
    """Start ``quire serve`` on the model and wait until it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "quire.cli", "serve", str(model_directory(cache, model))]
    command += ["--model-name", model, "--port", str(port), "--no-log-requests"]
    command += ["--dtype", "bfloat16"]  # as for vLLM and the offline runs
    return Server([*command, *options], port, "/ready")


def start_shipped(*options: str) -> Server:
    """Start ``quire serve`` on the shipped model and wait until it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "quire.cli", "serve", "--port", str(port)]
    return Server([*command, "--no-log-requests", *options], port, "/ready")


def start_vllm(
    model: str,
    cache: Path,
    max_sequences: int = MAX_SEQUENCES,
    *,
    dtype: str = "bfloat16",
    max_model_len: int = MAX_MODEL_LEN,
    core: int | None = None,
    options: Sequence[str] = (),
) -> Server:
    """Start vLLM's OpenAI server on ``core``, None: on every core. ``options``: further ones of its
    command line.

    Raises:
        PeerMissing: vLLM is not installed.
    """
    port = free_port()
    command = [
        peer_python(cache, "vllm"),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--port",
        str(port),
    ]
    command += ["--model", str(model_directory(cache, model)), "--served-model-name", model]
    command += ["--dtype", dtype, "--max-model-len", str(max_model_len)]
    command += ["--max-num-seqs", str(max_sequences), *options]
    environment = vllm_environment(cache)
    if core is not None:
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": str(core), "OMP_NUM_THREADS": "1"}
    with on_core(core):
        return Server(command, port, "/health", environment, _VLLM_START_S)


def start_transformers(model: str, cache: Path) -> Server:
    """Start ``transformers serve`` with the model loaded, processing one request at a time, which
    is its default. It calls the model by its directory.

    Raises:
        PeerMissing: it is not installed.
    """
    port = free_port()
    command = [peer_python(cache, "transformers"), "-m", "transformers.cli.transformers", "serve"]
    command += [str(model_directory(cache, model)), "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "bfloat16"]
    return Server(command, port, "/health", {"HF_HUB_OFFLINE": "1"})
