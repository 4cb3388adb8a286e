"""Refuses a parameter of a query that a path does not have.

Owns the refusal; a node's routes and a router's own paths make it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.server.errors.errors import HttpError
from quire.server.errors.unknown_fields import instead_of

_MAX_NAME_CHARS = 100


def check_query_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Check that each of ``names``, those of a request's query, is among ``known``.

    Raises:
        HttpError: 400, ``unknown_parameter``; it names the first that is not.
    """
    for name in names:
        if name not in known:
            shown = name[:_MAX_NAME_CHARS]
            raise HttpError(
                400, f"{shown}: {instead_of(name, known)}", code="unknown_parameter", param=shown
            )
