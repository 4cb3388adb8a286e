"""What a client can do whose session has spent its quota of tokens.

Control refuses further tokens for good, because those that were generated stay counted. An ordinary
client has named no session: each turn of its conversation would be refused again, and it would not
know why.
"""

from __future__ import annotations

from quire.core.errors import NeverWithinQuota
from quire.node import SessionHandle


def with_way_on(error: NeverWithinQuota, session: SessionHandle) -> NeverWithinQuota:
    """Return ``error`` with the name of ``session`` and the ways to go on, if its generated tokens
    are spent; else as it is."""
    if "max_generated_tokens" not in error.details:
        return error
    name = f"session {session.client_id or session.id}"
    whose = name if session.client_id is not None else f"this conversation ({name})"
    return NeverWithinQuota(
        f"{whose}: {error.message}. The header X-Quire-Program-ID names another session; DELETE "
        f"/v1/sessions/{session.id} ends this one, and the conversation goes on in a new one",
        **error.details,
    )
