"""Reads the file that ``--profile`` names."""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import ConfigError

MAX_PROFILE_BYTES = 1 << 20
"""The most bytes that are read; a profile has a few thousand."""


def profile_text(path: Path) -> str:
    """Return the content of the file. Raises ``ConfigError`` if it cannot be read, or is far too
    long for a profile."""
    try:
        with path.open("rb") as file:
            read = file.read(MAX_PROFILE_BYTES + 1)
        if len(read) > MAX_PROFILE_BYTES:
            raise ConfigError(
                f"--profile {path} has more than {MAX_PROFILE_BYTES} bytes, and no profile has: "
                "make one with 'quire profile'"
            )
        return read.decode("utf-8")
    except FileNotFoundError as exc:
        raise ConfigError(
            f"--profile {path}: there is no such file: make it with 'quire profile'"
        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--profile {path} cannot be read: {exc}") from exc
