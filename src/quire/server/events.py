"""The framing of streamed events for each API: server-sent events.

Owns the bytes around a JSON payload. Must not know what the payloads mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.core.errors import QuireError
from quire.server.errors.errors import body_of

EVENT_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers of every event stream: proxies would otherwise buffer events (nginx does by default), or
cache one client's stream for another."""


@dataclass(frozen=True, slots=True)
class EventStyle:
    """``frame`` makes an event of a ``Formatter``'s output, ``done`` ends the stream, ``errors``
    are the events for a failure in its middle."""

    frame: Callable[[bytes], bytes]
    done: bytes
    errors: Callable[[QuireError], Sequence[bytes]]


def data_event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def named_event(name: str, payload: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


def as_it_is(event: bytes) -> bytes:
    """Return ``event`` unchanged, for formatters that frame their events themselves."""
    return event


def _data_errors(error: QuireError) -> list[bytes]:
    return [data_event(json.dumps(body_of(error)).encode())]


DATA_EVENTS = EventStyle(data_event, b"data: [DONE]\n\n", _data_errors)
"""The framing of chat completions and completions."""
