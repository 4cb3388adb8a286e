"""The results of a batch's requests, one line each, in the order in which they end.

Owns the two growing files: answers and errors. After a restart it finds the requests that have a
line; an incomplete line is removed. Calls block on the disk.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from quire.core.errors import NeverWithinQuota

MAX_RESULT_BYTES = 1 << 30
"""The most bytes of a batch's answers and errors."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of one request: a response, or the ``reason`` why it has not run."""

    custom_id: str
    status: int = 0
    request_id: str = ""
    body: Any = None
    reason: str | None = None

    @property
    def is_answer(self) -> bool:
        return self.reason is None and self.status == 200


_REASONS = {
    "batch_expired": "the batch's completion_window was over before this request had run",
    "batch_cancelled": "the batch was cancelled before this request had run",
}


@dataclass(slots=True)
class _Growing:
    path: Path
    file: BinaryIO
    num_lines: int = 0


@dataclass(slots=True)
class Results:
    """The results so far. ``outputs`` and ``errors`` are the files; ``done`` has the custom_ids
    with a line in one of them."""

    outputs: _Growing
    errors: _Growing
    done: set[str] = field(default_factory=set)
    num_bytes: int = 0

    def add(self, result: RequestResult) -> None:
        """Write the line of one result. Raises ``NeverWithinQuota`` if the batch's results are too
        large."""
        into = self.outputs if result.is_answer else self.errors
        line = json.dumps(_shown(result), ensure_ascii=False).encode("utf-8", "surrogatepass")
        self.num_bytes += len(line) + 1
        if self.num_bytes > MAX_RESULT_BYTES:
            raise NeverWithinQuota(
                f"the results of the batch have over {MAX_RESULT_BYTES} bytes: send several"
            )
        into.file.write(line + b"\n")
        into.file.flush()
        into.num_lines += 1
        self.done.add(result.custom_id)

    def close(self) -> None:
        self.outputs.file.close()
        self.errors.file.close()


def open_results(directory: Path, batch_id: str) -> Results:
    """Open the results of a batch, with the lines of an earlier run if there are any."""
    done: set[str] = set()
    outputs = _reopened(directory / f"{batch_id}.outputs", done)
    errors = _reopened(directory / f"{batch_id}.errors", done)
    num_bytes = outputs.file.tell() + errors.file.tell()
    return Results(outputs, errors, done, num_bytes)


def _reopened(path: Path, done: set[str]) -> _Growing:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    growing, end = _Growing(path, file), 0
    for line in file:
        if not line.endswith(b"\n"):
            break
        end += len(line)
        growing.num_lines += 1
        done.add(json.loads(line)["custom_id"])
    file.truncate(end)
    file.seek(end)
    return growing


def _shown(result: RequestResult) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": result.custom_id,
        "response": None,
        "error": None,
    }
    if result.reason is not None:
        shown["error"] = {"code": result.reason, "message": _REASONS[result.reason]}
    else:
        shown["response"] = {
            "status_code": result.status,
            "request_id": result.request_id,
            "body": result.body,
        }
    return shown
