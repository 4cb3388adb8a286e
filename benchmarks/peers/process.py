"""Keeps a peer loaded in a process of its own while rounds alternate.

Owns the process and its protocol: one JSON line out, one back. The worker's standard error goes to
a log file, whose end is shown when it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.process_memory import pss_bytes
from benchmarks.process_time import cpu_s

_SHOWN_LINES = 15


class PeerFailed(Exception):
    """The worker has ended; the message contains its last output."""


class PeerProcess:
    """A peer's process, as a context manager. ``order``: the argument of the worker's ``load``."""

    def __init__(
        self, command: Sequence[str], order: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **environment},
            cwd=Path(command[1]).parent if len(command) > 1 else None,
        )
        loaded = self._ask(order)
        self.version: str = loaded["version"]
        self.load_s: float = loaded["load_s"]

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> dict[str, float]:
        """Do one run; see ``worker.Stopwatch.report``. ``cpu_s``: the processor time of the worker
        and its children meanwhile.

        Raises:
            PeerFailed: the worker has ended.
        """
        before_s = cpu_s(self._process.pid)
        report = self._ask({"prompts": prompts, "num_tokens": num_tokens})
        return {**report, "cpu_s": cpu_s(self._process.pid) - before_s}

    def pss_bytes(self) -> int:
        return pss_bytes(self._process.pid)

    def _ask(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(fields) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().splitlines()[-_SHOWN_LINES:]
        command = " ".join(map(str, self._process.args))  # type: ignore[arg-type]
        status = self._process.returncode
        return f"{command} ended with status {status}; it last said:\n  " + "\n  ".join(lines)

    def close(self) -> None:
        """End the worker by closing its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
