"""Finds markers in text that arrives in parts."""

from __future__ import annotations

from typing import AnyStr


def num_suspect(text: AnyStr, marker: AnyStr) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``marker``."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
