"""Checks the headers of a program's request: all are allowed except those that frame a message.

The host sets the framing headers. Two that contradict each other (``content-length`` and
``transfer-encoding``) could make a server take a part of one request for the next request on its
connection.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument

ACCEPTED_CODINGS = "gzip, deflate"
"""The value of ``accept-encoding`` unless the program sets it: what ``content_coding`` decodes."""

_FRAMING = frozenset(
    {"keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
_HARMLESS_CONNECTION = frozenset({"close", "keep-alive"})


def checked_headers(headers: Mapping[str, str], num_bytes: int) -> dict[str, str]:
    """``headers`` for a body of ``num_bytes``, without those that the HTTP client writes itself.

    Raises:
        InvalidArgument: a header would change the framing of the message.
    """
    kept: dict[str, str] = {}
    for name, value in headers.items():
        known = name.strip().lower()
        if known == "content-length":
            _check_length(value, num_bytes)
            continue
        if known == "connection":
            if value.strip().lower() in _HARMLESS_CONNECTION:
                continue
            raise _not_yours(name, value)
        if known in _FRAMING:
            raise _not_yours(name, value)
        kept[name] = value
    return kept


def _check_length(value: str, num_bytes: int) -> None:
    if value.strip() != str(num_bytes):
        raise InvalidArgument(
            f"the header content-length says {value[:40]!r}, the body has {num_bytes} bytes: leave "
            "the header out"
        )


def _not_yours(name: str, value: str) -> InvalidArgument:
    return InvalidArgument(
        f"the header {name[:40]}: {value[:40]!r} frames the request, which only the host may do: "
        "leave it out"
    )
