"""Finds terms by the words before them."""

from __future__ import annotations

import re

_TERM = re.compile(r"\b(?:a|an|the)\s+([a-z]{4,})\b", re.IGNORECASE)


def find_terms(text: str) -> list[str]:
    """Return the nouns behind articles, each once, in order."""
    return list(dict.fromkeys(found.lower() for found in _TERM.findall(text)))
