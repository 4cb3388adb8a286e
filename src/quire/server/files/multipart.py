"""An incremental parser of ``multipart/form-data``, with which clients upload files.

Owns the boundaries of parts. Does no I/O and buffers at most the length of a boundary, so that
files of any size pass. Must not know what the parts are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message

from quire.core.errors import InvalidArgument

MAX_HEAD_BYTES = 8 << 10
MAX_PARTS = 16


@dataclass(frozen=True, slots=True)
class PartStarted:
    """The beginning of a part. ``filename``: ``None`` for a field."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartContent:
    """The next bytes of the part that was started last."""

    content: bytes


PartEvent = PartStarted | PartContent


class MultipartReader:
    """Call ``feed`` with the body as it arrives, and ``finish`` once. The contents add up to the
    same, however the body is cut."""

    def __init__(self, content_type: str) -> None:
        """Raise ``InvalidArgument`` for another content type, or if the boundary is missing."""
        header = Message()
        header["content-type"] = content_type
        with _readable("content-type"):
            boundary = header.get_boundary()
        if header.get_content_type() != "multipart/form-data" or not boundary:
            raise InvalidArgument(
                "a file is sent as multipart/form-data with a boundary, as clients' upload "
                "functions do"
            )
        self._delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
        self._held = b"\r\n"  # the first delimiter need not follow a line break
        self._in_part = False
        self._num_parts = 0
        self._ended = False

    def feed(self, content: bytes) -> list[PartEvent]:
        """Return the events of the next bytes. Raises ``InvalidArgument`` if the body is malformed,
        or has too many parts."""
        self._held += content
        events: list[PartEvent] = []
        while not self._ended and self._advance(events):
            pass
        return events

    def finish(self) -> None:
        """Check that the body is complete. Raises ``InvalidArgument`` if it has ended within a
        part."""
        if not self._ended:
            raise InvalidArgument("the form ends before its last boundary: send all of it")

    def _advance(self, events: list[PartEvent]) -> bool:
        """Take one step; return False if more bytes are needed."""
        place = self._held.find(self._delimiter)
        if place < 0:
            self._tell_content(events)
            return False
        end = place + len(self._delimiter)
        mark = self._held[end : end + 2]
        if len(mark) < 2:
            return False
        if mark == b"--":
            self._add(events, self._held[:place])
            self._held, self._ended = b"", True
            return False
        head_end = self._held.find(b"\r\n\r\n", end)
        if head_end < 0:
            if len(self._held) - end > MAX_HEAD_BYTES:
                raise InvalidArgument(f"the head of a part is longer than {MAX_HEAD_BYTES} bytes")
            return False
        self._add(events, self._held[:place])
        events.append(self._started(self._held[end:head_end]))
        self._held, self._in_part = self._held[head_end + 4 :], True
        return True

    def _tell_content(self, events: list[PartEvent]) -> None:
        """Add all bytes except a possible beginning of a delimiter to the content."""
        num_sure = len(self._held) - len(self._delimiter) + 1
        if num_sure > 0:
            self._add(events, self._held[:num_sure])
            self._held = self._held[num_sure:]

    def _add(self, events: list[PartEvent], content: bytes) -> None:
        if content and self._in_part:  # a preamble before the first part is ignored
            events.append(PartContent(content))

    def _started(self, head: bytes) -> PartStarted:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidArgument(f"the form has more than {MAX_PARTS} parts")
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-disposition":
                header = Message()
                header["content-disposition"] = value.decode("utf-8", "replace").strip()
                with _readable("content-disposition"):
                    field = header.get_param("name", header="content-disposition")
                    filename = header.get_filename()
                if isinstance(field, str):
                    return PartStarted(field, None if filename is None else _sayable(filename))
        raise InvalidArgument("a part of the form has no content-disposition with a name")


@contextmanager
def _readable(header: str) -> Iterator[None]:
    """Refuse a header whose parameters Python cannot read: they may name any encoding, and number
    their parts with any digits."""
    try:
        yield
    except ValueError as exc:
        raise InvalidArgument(f"the {header} of the form cannot be read: {exc}") from exc


def _sayable(name: str) -> str:
    """Return ``name`` without halves of surrogate pairs, which some encodings can express."""
    return name.encode("utf-8", "replace").decode()
