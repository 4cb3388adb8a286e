"""Checks names of topics, queues and stores, and messages."""

from __future__ import annotations

from typing import Any

from quire.core.errors import InvalidArgument

MAX_NAME_BYTES = 512


def check_name(kind: str, name: Any) -> None:
    """Raise ``InvalidArgument`` unless ``name`` is a valid name of a ``kind``."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a {kind}'s name must be text that is not empty, not {name!r}")
    if not name.isprintable():
        raise InvalidArgument(f"{kind} {name!r}: its name must be printable")
    num_bytes = len(name.encode())
    if num_bytes > MAX_NAME_BYTES:
        raise InvalidArgument(
            f"a {kind}'s name of {num_bytes} bytes; at most {MAX_NAME_BYTES} are allowed: "
            "shorten it"
        )


def check_message(verb: str, message: Any, max_bytes: int) -> int:
    """The size of ``message`` in bytes; raises ``InvalidArgument`` unless it is text and not too
    long."""
    if not isinstance(message, str):
        raise InvalidArgument(
            f"{verb} takes a str, not {type(message).__name__}: encode it, e.g. with json.dumps"
        )
    try:
        num_bytes = len(message.encode())
    except UnicodeEncodeError as exc:
        raise InvalidArgument(
            f"{verb}: a lone surrogate at index {exc.start}: the text is not valid Unicode"
        ) from exc
    if num_bytes > max_bytes:
        raise InvalidArgument(
            f"{verb} of {num_bytes} bytes; at most {max_bytes} are allowed: send it in parts"
        )
    return num_bytes
