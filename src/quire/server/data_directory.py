"""The directory in which a node keeps files: whether it can, asked before anything starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from quire.core.errors import ConfigError


def check_data_directory(path: Path | None) -> None:
    """Make the directory if need be, and write to it; ``None``: nothing is kept.

    Raises:
        ConfigError: it cannot be made, or nothing can be written there.
    """
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
    except OSError as exc:
        raise ConfigError(
            f"nothing can be kept in the data directory {path}: {exc.strerror or exc}; name "
            "another with --data-dir, or make room and give this user the right to write there"
        ) from exc
