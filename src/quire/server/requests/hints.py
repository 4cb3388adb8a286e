"""Hints to the scheduler that are out of range: what counts in their place, and how a client is
told.

A hint changes when a call runs, not what it answers, so a request is not refused for it: the
nearest value of its range counts. Owns the ranges and the header that names what was clipped.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel
from starlette.responses import Response

from quire.server.schemas.generation import MAX_PRIORITY, IdentityFields
from quire.server.schemas.sessions import MAX_DEADLINE_S

CLIPPED_HEADER = "x-quire-clipped"
"""The hints of a request that were out of range, each with the value that counts instead."""


def priority_in_range(priority: int | None) -> int:
    """Return the priority that counts for the one that a client has sent; 0 for none."""
    return max(-MAX_PRIORITY, min(priority or 0, MAX_PRIORITY))


def deadline_in_range(deadline_s: float | None) -> float | None:
    """Return the seconds until a deadline that count for those that a client has sent. One in the
    past has come."""
    return None if deadline_s is None else max(0.0, min(deadline_s, MAX_DEADLINE_S))


def tell_clipped(response: Response, body: BaseModel) -> Response:
    """Return ``response`` with a header that names the hints of ``body`` that were clipped."""
    clipped = ", ".join(f"{name}={value:.0f}" for name, value in _clipped(body))
    if clipped:
        response.headers[CLIPPED_HEADER] = clipped
    return response


def _clipped(body: BaseModel) -> Iterator[tuple[str, float]]:
    priority = getattr(body, "priority", None)
    if priority is not None and priority_in_range(priority) != priority:
        yield "priority", priority_in_range(priority)
    hinted = _hinted(body)
    if hinted is not None and priority_in_range(hinted) != hinted:
        yield "nvext.agent_hints.priority", priority_in_range(hinted)
    deadline_s = getattr(body, "deadline_s", None)
    counted_s = deadline_in_range(deadline_s)
    if counted_s is not None and counted_s != deadline_s:
        yield "deadline_s", counted_s


def _hinted(body: BaseModel) -> int | None:
    """Return Dynamo's hint, if ``body`` has it."""
    if not isinstance(body, IdentityFields) or body.nvext is None:
        return None
    return None if body.nvext.agent_hints is None else body.nvext.agent_hints.priority
