"""The lines of a batch's input file: all are checked first, then read one by one.

Owns the format of a line. Keeps the place and custom_id of each line, never its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from quire.server.errors.errors import HttpError
from quire.server.requests.strict_json import strict_loads
from quire.server.schemas.batches import BatchError

MAX_LINES = 50_000
MAX_ERRORS = 100
_MAX_ID_CHARS = 512
_KEYS = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True, slots=True)
class BatchLine:
    """The place of one request in the input file. ``custom_id``: the client's name for it."""

    custom_id: str
    start: int
    num_bytes: int


@dataclass(slots=True)
class CheckedLines:
    """All lines, or the errors in them."""

    lines: list[BatchLine] = field(default_factory=list)
    errors: list[BatchError] = field(default_factory=list)


class _Bad(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        self.code, self.message, self.param = code, message, param


def check_lines(path: Path, endpoint: str, max_line_bytes: int) -> CheckedLines:
    """Check every line of the file at ``path``; at most ``MAX_ERRORS`` errors are returned."""
    checked, known = CheckedLines(), set[str]()
    for raw in _raw_lines(path, max_line_bytes):
        if len(checked.errors) >= MAX_ERRORS:
            break
        try:
            if len(checked.lines) >= MAX_LINES:
                raise _Bad("too_many_requests", f"a batch has at most {MAX_LINES} requests")
            line = _checked(raw, endpoint, max_line_bytes)
            if line.custom_id in known:
                raise _Bad("duplicate_custom_id", "another line has this custom_id", "custom_id")
        except _Bad as bad:
            checked.errors.append(
                BatchError(code=bad.code, message=bad.message, line=raw.number, param=bad.param)
            )
            if bad.code == "too_many_requests":
                break
            continue
        known.add(line.custom_id)
        checked.lines.append(line)
    if not checked.lines and not checked.errors:
        checked.errors.append(BatchError(code="empty_file", message="the file has no requests"))
    return checked


class _RawLine(NamedTuple):
    """A line whose ``text`` begins at byte ``start`` of the file; ``None``: the line is too
    long."""

    number: int
    start: int
    text: bytes | None


def _raw_lines(path: Path, max_line_bytes: int) -> Iterator[_RawLine]:
    """Yield the lines that are not empty."""
    start = number = 0
    with path.open("rb") as file:
        while raw := file.readline(max_line_bytes + 1):
            number += 1
            text = raw.strip()
            place, start = start + raw.index(text), start + len(raw)
            is_whole = True
            while not raw.endswith(b"\n") and (raw := file.readline(1 << 20)):
                start += len(raw)
                is_whole = False
            if text or not is_whole:
                yield _RawLine(number, place, text if is_whole else None)


def _checked(raw: _RawLine, endpoint: str, max_line_bytes: int) -> BatchLine:
    if raw.text is None:
        raise _Bad("line_too_long", f"a line has at most {max_line_bytes} bytes")
    try:
        value = strict_loads(raw.text)
    except HttpError as exc:
        raise _Bad("invalid_json_line", str(exc.detail).replace("the body", "the line")) from exc
    if not isinstance(value, dict):
        raise _Bad("invalid_json_line", "the line is not a JSON object")
    if unknown := sorted(value.keys() - _KEYS):
        raise _Bad("unknown_parameter", f"no such field: {unknown[0][:64]!r}", unknown[0][:64])
    name = value.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_ID_CHARS:
        raise _Bad("invalid_custom_id", f"must be 1 to {_MAX_ID_CHARS} characters", "custom_id")
    if value.get("method") != "POST":
        raise _Bad("invalid_method", "method must be POST", "method")
    if value.get("url") != endpoint:
        raise _Bad("invalid_url", f"url must be the batch's endpoint, {endpoint}", "url")
    if not isinstance(value.get("body"), dict):
        raise _Bad("invalid_body", "body must be an object", "body")
    return BatchLine(name, raw.start, len(raw.text))


def read_line(path: Path, line: BatchLine) -> dict[str, Any]:
    """Return the body of the request at ``line``, which has been checked."""
    with path.open("rb") as file:
        file.seek(line.start)
        raw = file.read(line.num_bytes)
    body: dict[str, Any] = strict_loads(raw)["body"]
    return body
