"""Processes that build for a sandbox: joining the Python component, compiling.

Owns those that run, so that builds can be ended: who waits for such a process then sees it killed,
and none is started any more. Thread-safe.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from quire.core.errors import Draining


class BuildProcesses:
    """``start`` and ``ended`` belong to who builds, ``end`` to anybody."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """``Popen`` with ``options``, for text.

        Raises:
            Draining: ``end`` came before.
        """
        with self._lock:
            if self._is_over:
                raise Draining("the sandbox is ending and builds nothing any more")
            process = subprocess.Popen(command, text=True, **options)
            self._running.add(process)
            return process

    def ended(self, process: subprocess.Popen[str]) -> None:
        """It was waited for."""
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """Kill what runs, start nothing more. Idempotent."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                process.kill()
