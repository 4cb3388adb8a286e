"""Which headers a program may give a request: all but those by which a message is framed.

Those are the host's. Two that contradict one another (``content-length`` beside
``transfer-encoding``) let a server take a part of one request for the next one on its connection.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument

ACCEPTED_CODINGS = "gzip, deflate"
"""What ``accept-encoding`` says where a program says nothing: what ``content_coding`` takes off."""

_FRAMING = frozenset(
    {"keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
_HARMLESS_CONNECTION = frozenset({"close", "keep-alive"})


def checked_headers(headers: Mapping[str, str], num_bytes: int) -> dict[str, str]:
    """``headers`` for a body of ``num_bytes``, without what the HTTP client writes itself.

    Raises:
        InvalidArgument: one of them would frame the message otherwise than it is.
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
        f"the header {name[:40]}: {value[:40]!r} says how a request is sent, which is the host's: "
        "leave it out"
    )
