"""``/v1/sessions``: the request, and a session with its figures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from quire.server.schemas.base import Name, RequestModel, WholeModel, counted_first
from quire.server.schemas.generation import Priority

MAX_DEADLINE_S = 30 * 86_400.0

SessionName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=256, pattern=r"^[!-\-0-~]([ -.0-~]*[!-.0-~])?$"),
]
"""A name that a header and a path can contain: printable ASCII without a slash, no space at its
ends, no dot at its beginning."""

MetadataName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataText = Annotated[str, StringConstraints(max_length=512)]


class SessionRequest(RequestModel):
    """``id``: the name by which requests refer to it; if absent, one is chosen. ``parent``: a
    session or launched program of the same tenant. ``kind``: a name for sessions like this one; the
    policy ``quire`` learns the lengths of each kind. ``priority``: as in vLLM, lower runs first;
    that of a request is added to it. ``deadline_s``: in how many seconds it should be done, clipped
    to at most 30 days. ``idle_ttl_s``: it ends by itself after this time without a request."""

    id: SessionName | None = None
    parent: Name | None = None
    kind: Name | None = None
    priority: Priority | None = None
    deadline_s: float | None = None
    idle_ttl_s: Annotated[float, Field(ge=1)] | None = None
    metadata: (
        Annotated[dict[MetadataName, MetadataText], Field(max_length=16), counted_first(16)] | None
    ) = None


class SessionFigures(WholeModel):
    """From the process table. ``service_s``: engine time of the batch messages that had a part of
    the session; ``path_s``: the longest critical path through its calls; ``cost_s``: its share of
    ``service_s`` by tokens; ``waiting_s``: time in which a command could have run and did not.
    ``num_threads``: lines of calls so far."""

    num_pages: int
    num_pending_commands: int
    num_threads: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_encoded_tokens: int
    num_preemptions: int
    service_s: float
    path_s: float
    cost_s: float
    waiting_s: float


class Session(WholeModel):
    """``id``: the client's name for it, else its ``program``, which is its id in ``/v1/programs``.
    ``created_at`` is Unix time. ``parent``: as the client named it; null if this node knows none.
    ``num_calls``: requests so far, of which ``num_running_calls`` are running. ``figures``: null
    until its first call."""

    id: str
    object: Literal["session"] = "session"
    program: str
    state: Literal["idle", "waiting", "running"]
    created_at: float
    parent: str | None
    kind: str | None
    priority: int
    deadline_s: float | None
    idle_ttl_s: float
    metadata: dict[str, str]
    num_calls: int
    num_running_calls: int
    figures: SessionFigures | None


class SessionList(WholeModel):
    object: Literal["list"] = "list"
    data: list[Session]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedSession(WholeModel):
    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: Literal[True] = True
