"""The file that ``--output`` names: checked before the work whose result it takes, written after.

Owns both errors. Must not know what the file contains.
"""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import ConfigError


def check_target(path: Path | None) -> None:
    """Check that the file of ``--output`` can be expected to be written; None is none.

    Raises:
        ConfigError: its folder does not exist, or it is a folder itself.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder: name a file in it")


def write_target(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc}") from exc
