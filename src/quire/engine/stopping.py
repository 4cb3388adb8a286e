"""Stop conditions on sampled tokens: ids and token limits as columns, byte strings as objects.

The order of precedence is that of the contract: stop token, stop string, grammar, token limit.
"""

from __future__ import annotations

from collections.abc import Sequence

_NOT_FOUND = -1


class ByteStopMatcher:
    """Finds the first stop string in a growing output, searching only its new end.

    ``push`` keeps as many bytes as a string could use across a token boundary.
    """

    __slots__ = ("_keep", "_strings", "_tail")

    def __init__(self, strings: Sequence[bytes]) -> None:
        self._strings = tuple(strings)
        self._keep = max(len(string) for string in self._strings) - 1
        self._tail = b""

    def push(self, token_bytes: bytes) -> int | None:
        """Index of the string that ends first in the output so far, or None."""
        text = self._tail + token_bytes
        ends = [
            (start + len(string), index)
            for index, string in enumerate(self._strings)
            if (start := text.find(string)) != _NOT_FOUND
        ]
        self._tail = text[-self._keep :] if self._keep else b""
        return min(ends)[1] if ends else None
