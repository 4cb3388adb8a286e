"""Child processes that build for a sandbox: assembling the Python component, compiling.

Owns the running processes, so that builds can be ended: their callers then see them killed, and no
further process starts. Thread-safe.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from quire.core.errors import Draining


class BuildProcesses:
    """The running builds. ``start`` and ``ended`` are called by the builders; ``end`` may be called
    by any thread."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """``Popen`` with ``options``, in text mode.

        Raises:
            Draining: ``end`` was called.
        """
        with self._lock:
            if self._is_over:
                raise Draining("the sandbox is ending and starts no further builds")
            process = subprocess.Popen(command, text=True, **options)
            self._running.add(process)
            return process

    def ended(self, process: subprocess.Popen[str]) -> None:
        """Note that the process has ended and was waited for."""
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """Kill running processes, start no further ones. Idempotent."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                process.kill()
