"""Reads which program a call belongs to: headers and body fields of many clients become one
``CallIdentity``.

Owns the order in which they are read and the sign of ``priority``. Must not know sessions or the
process table. An identity carries no privilege: it groups calls within the caller's own tenant.

The first source that names a session wins; the sources are, in order:

1. ``X-Quire-Program-ID`` with ``X-Quire-Thread-ID``, ``X-Quire-Parent-Thread-ID`` (of the thread
   that this one was forked from) and ``X-Quire-Parent-ID``
2. the body's ``session_id``
3. ``X-Session-ID``
4. ``x-dynamo-session-id`` with ``x-dynamo-parent-session-id``
5. ``x-claude-code-session-id`` with ``x-claude-code-agent-id`` (a thread of the session) and
   ``x-claude-code-parent-agent-id``
6. ``session-id`` (Codex)
7. ``x-parent-session-id`` (OpenCode): the parent of a session that another source names
8. ``x-litellm-session-id``
9. hints, which never make a session: ``x-llm-d-inference-fairness-id``, ``prompt_cache_key``

``X-Quire-Final`` or ``x-dynamo-session-final`` end the session after the call.

Priority. Inside Quire higher runs first. The body's ``priority`` has vLLM's sign (lower first) and
is negated; Dynamo's ``nvext.agent_hints.priority`` has ours and comes first if both are there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from quire.core.errors import InvalidArgument
from quire.server.requests.hints import priority_in_range
from quire.server.schemas.generation import IdentityFields

_NAME = re.compile(r"[!-~][ -~]{0,255}")
NAMING_HEADERS = frozenset(
    {
        "x-quire-program-id",
        "x-session-id",
        "x-dynamo-session-id",
        "x-claude-code-session-id",
        "session-id",
        "x-litellm-session-id",
    }
)
"""Headers that name the session of a call. Without one of them, and without the body's
``session_id``, it has no name."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """``client_id``: the client's name for the session, ``None``: to be inferred.

    ``thread`` and ``parent_thread`` are lines of calls within it, ``parent`` another session that
    started it, ``hint`` a grouping that is only recorded. ``final``: the session ends after this
    request. ``priority``: higher runs first.
    """

    client_id: str | None = None
    thread: str | None = None
    parent: str | None = None
    parent_thread: str | None = None
    hint: str | None = None
    final: bool = False
    priority: int = 0


def identify(headers: Headers, body: IdentityFields) -> CallIdentity:
    """Read the identity of one request.

    Raises:
        InvalidArgument: a header that is too long, not printable ASCII, or not a boolean.
    """
    reader = _Reader(headers)
    client_id, thread, parent, parent_thread = _session(reader, body)
    return CallIdentity(
        client_id=client_id,
        thread=thread,
        parent=parent,
        parent_thread=parent_thread,
        hint=reader.name("x-llm-d-inference-fairness-id") or body.prompt_cache_key,
        final=reader.flag("x-quire-final") or reader.flag("x-dynamo-session-final"),
        priority=priority_of(body),
    )


class _Reader:
    """Reads headers as validated names and flags; of a repeated header the first counts."""

    def __init__(self, headers: Headers) -> None:
        self._headers = dict(reversed(headers.items()))

    def name(self, header: str) -> str | None:
        value = self._headers.get(header, "").strip()
        if not value:
            return None
        if not _NAME.fullmatch(value):
            raise InvalidArgument(
                f"header {header} must be 1 to 256 printable ASCII characters", param=header
            )
        return value

    def flag(self, header: str) -> bool:
        value = self._headers.get(header, "").strip().lower()
        if value not in _TRUE | _FALSE:
            raise InvalidArgument(f"header {header} must be true or false", param=header)
        return value in _TRUE


def _session(
    reader: _Reader, body: IdentityFields
) -> tuple[str | None, str | None, str | None, str | None]:
    """Return (client_id, thread, parent, parent_thread), from the sources in the order of the
    module's docstring."""
    thread = reader.name("x-quire-thread-id")
    parent = reader.name("x-quire-parent-id") or reader.name("x-parent-session-id")
    if own := reader.name("x-quire-program-id"):
        return own, thread, parent, reader.name("x-quire-parent-thread-id")
    if own := body.session_id or reader.name("x-session-id"):
        return own, thread, parent, None
    if own := reader.name("x-dynamo-session-id"):
        return own, thread, reader.name("x-dynamo-parent-session-id") or parent, None
    if own := reader.name("x-claude-code-session-id"):
        agent = reader.name("x-claude-code-agent-id")
        return own, agent or thread, parent, reader.name("x-claude-code-parent-agent-id")
    own = reader.name("session-id") or reader.name("x-litellm-session-id")
    return own, thread, parent, None


def priority_of(body: IdentityFields) -> int:
    """Return the request's priority; requests with a higher one run first. No header sets it."""
    if body.nvext is not None and body.nvext.agent_hints is not None:
        hinted = body.nvext.agent_hints.priority
        if hinted is not None:
            return priority_in_range(hinted)
    return -priority_in_range(body.priority)
