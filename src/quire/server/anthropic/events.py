"""One event of Anthropic's streams: its kind stands beside the body and in it."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.server.events import named_event

_encode = msgspec.json.Encoder().encode


def event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, _encode({"type": kind, **fields}))
