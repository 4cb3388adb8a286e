"""Sizes as people write them: ``512MiB``, ``2G``, ``1.5gb``; and back.

Powers of 1024 throughout: memory is what these sizes measure.
"""

from __future__ import annotations

import re

from quire.core.errors import ConfigError

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The number of bytes that ``text`` names.

    Raises:
        ConfigError: it is not a positive number with an optional unit.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match.group(1)) * 1024 ** _UNITS[match.group(2).lower()]) if match else 0
    if size < 1:
        raise ConfigError(
            f"{text!r} is not a size: write a number of bytes or e.g. 512MiB, 2GiB (K, M, G, T)"
        )
    return size


def format_size(num_bytes: int) -> str:
    """``num_bytes`` with the largest unit that keeps it above one: ``256 MiB``, ``1.5 GiB``."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    is_whole = value >= 99.95 or value == int(value)
    return f"{value:.0f} {unit}" if is_whole else f"{value:.1f} {unit}"
