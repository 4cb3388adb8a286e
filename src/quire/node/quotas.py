"""Joins the limits on one program from several sources: the smallest of each applies."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from quire.core.quotas import Quotas


@lru_cache(maxsize=1024)
def tightest(*quotas: Quotas | None) -> Quotas:
    """The smallest value of every field; ``None`` (unlimited) only if all are.

    Cached, as most launches have the same limits.
    """
    given = [one for one in quotas if one is not None]
    bounds: dict[str, int] = {}
    for field in Quotas.__struct_fields__:
        values = [value for one in given if (value := getattr(one, field)) is not None]
        if values:
            bounds[field] = min(values)
    return msgspec.structs.replace(_UNBOUNDED, **bounds)


_UNBOUNDED = Quotas(max_pending_commands=None, max_children=None, max_queues=None, max_exports=None)
