"""Refuses a parameter of a query that a path does not have, or that is there twice.

Owns the refusal; a node's routes and a router's own paths make it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.datastructures import QueryParams

from quire.server.errors.errors import HttpError
from quire.server.errors.unknown_fields import instead_of

_MAX_NAME_CHARS = 100


def check_query_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Check that each of ``names``, those of a request's query as often as they stand there, is
    among ``known``, and stands there once.

    Raises:
        HttpError: 400; it names the first that is not (``unknown_parameter``), or does not
            (``invalid_argument``).
    """
    seen: set[str] = set()
    for name in names:
        shown = name[:_MAX_NAME_CHARS]
        if name not in known:
            raise HttpError(
                400, f"{shown}: {instead_of(name, known)}", code="unknown_parameter", param=shown
            )
        if name in seen:
            raise HttpError(
                400,
                f"{shown}: it is there twice; send it once",
                code="invalid_argument",
                param=shown,
            )
        seen.add(name)


def check_query(query: QueryParams, known: Sequence[str]) -> None:
    """``check_query_names`` of all names of ``query``."""
    check_query_names([name for name, _ in query.multi_items()], known)
