"""Keys in files of one line each."""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import ConfigError


def read_key(path: Path | None, what: str) -> str | None:
    """Return the key in the file ``path``, None without a path; ``what`` is the name of the option
    or setting in messages.

    Raises:
        ConfigError: it cannot be read, or has no key.
    """
    if path is None:
        return None
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{what} {str(path)!r} cannot be read: {exc}") from exc
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"{what} {str(path)!r} must have one line of printable ASCII: write one with "
            f"'openssl rand -hex 32 > {path}'"
        )
    return key
