"""The JSON lines that requests leave in the log, for tests that wait for them."""

from __future__ import annotations

import json
import logging
import queue
from typing import Any


class RequestLines(logging.Handler):
    """The JSON lines of ended requests, as they come; ``refused`` has those of refused ones."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.refused: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        line = json.loads(record.getMessage())
        (self.refused if line["outcome"] == "refused" else self._lines).put(line)

    def next(self) -> dict[str, Any]:
        """Waits for the next one."""
        return self._lines.get(timeout=60)
