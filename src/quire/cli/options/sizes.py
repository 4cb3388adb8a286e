"""The parsers of options whose values are sizes. Their errors name the option."""

from __future__ import annotations

import typer

from quire.core.errors import ConfigError
from quire.core.sizes import parse_size


def size_value(value: object) -> int:
    """Return a size in bytes. typer also passes the default, which is a number.

    Raises:
        typer.BadParameter: it is no size.
    """
    try:
        return parse_size(str(value))
    except ConfigError as exc:
        raise typer.BadParameter(exc.message) from exc


def size_or_nothing(value: object) -> int:
    """Return a size in bytes that may be 0.

    Raises:
        typer.BadParameter: it is no size.
    """
    return 0 if str(value).strip() == "0" else size_value(value)
