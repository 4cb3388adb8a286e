"""Suggests what to write instead of a field that a body must not have.

Owns the hint; ``schemas.other_names`` has the fields of other servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from fastapi.routing import APIRoute
from pydantic import BaseModel

from quire.server.schemas.other_names import our_name, same_in, why_not_served

_MAX_LISTED = 16
_MAX_MISTYPED_CHARS = 100
"""How much of a name is compared with ours."""


def fields_of(routes: Sequence[APIRoute], method: str, path: str) -> tuple[str, ...]:
    """Return the fields of the body that the route takes; none if it takes no JSON object."""
    for route in routes:
        if method in (route.methods or ()) and route.path_regex.fullmatch(path):
            body = route.body_field and route.body_field.field_info.annotation
            if isinstance(body, type) and issubclass(body, BaseModel):
                return tuple(one.alias or name for name, one in body.model_fields.items())
    return ()


def instead_of(param: str, fields: Sequence[str]) -> str:
    """Return the message for the unknown field ``param``; ``fields``: those of the whole body."""
    if instead := our_name(param):
        return f"no such parameter; write {instead}"
    if reason := why_not_served(param, fields):
        return f"not served here: {reason}; leave it out"
    if same := same_in(param, fields):
        return f"no such parameter; write {same}"
    if not {".", "["} & set(param):
        near = get_close_matches(param[:_MAX_MISTYPED_CHARS], fields, n=1, cutoff=0.75)
        if near:
            return f"no such parameter; did you mean {near[0]}?"
        if 0 < len(fields) <= _MAX_LISTED:
            return f"no such parameter; there are {', '.join(fields)}"
    return "no such parameter; check its spelling or leave it out"
