"""Turns the masks of grammars into excluded tokens.

Shapes: G constrained rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import QuireError
from quire.engine.sampling.grammar_matchers import ConfinedMatcher


def forbidden_tokens(
    matchers: Sequence[ConfinedMatcher], vocab_size: int
) -> tuple[NDArray[np.bool_], list[QuireError | None]]:
    """Tokens that each matcher forbids ``[G, V]``, and the errors of matchers that failed.

    Tokens beyond the vocabulary that the grammar was compiled for are forbidden.
    """
    forbidden_GV = np.ones((len(matchers), vocab_size), np.bool_)
    errors: list[QuireError | None] = [None] * len(matchers)
    for place, matcher in enumerate(matchers):
        try:
            allowed = np.frombuffer(matcher.mask(), np.uint8)
        except QuireError as exc:
            errors[place] = exc
            continue
        bits = np.unpackbits(allowed, bitorder="little")[:vocab_size]
        forbidden_GV[place, : len(bits)] = bits == 0
    return forbidden_GV, errors
