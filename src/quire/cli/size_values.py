"""The parsers of options whose values are sizes. What they refuse names the option."""

from __future__ import annotations

import typer

from quire.core.errors import ConfigError
from quire.core.sizes import parse_size


def size_value(value: object) -> int:
    """Bytes. typer gives it the default, a number, as well.

    Raises:
        typer.BadParameter: it is no size.
    """
    try:
        return parse_size(str(value))
    except ConfigError as exc:
        raise typer.BadParameter(exc.message) from exc


def size_or_nothing(value: object) -> int:
    """Bytes of something that may be left out: 0 is a size, too.

    Raises:
        typer.BadParameter: it is no size.
    """
    return 0 if str(value).strip() == "0" else size_value(value)
