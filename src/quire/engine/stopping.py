"""Stop conditions on sampled tokens: ids and token limits as columns, byte strings as objects.

The order of precedence is that of the contract: stop token, stop string, grammar, token limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_NOT_FOUND = -1


class ByteStopMatcher:
    """Finds the first stop string in a growing output, searching for each only where it can end in
    the new bytes.

    ``push`` keeps as many bytes as a string could use across a token boundary.
    """

    __slots__ = ("_keep", "_strings", "_tail")

    def __init__(self, strings: Sequence[bytes]) -> None:
        self._strings = tuple(strings)
        self._keep = max(len(string) for string in self._strings) - 1
        self._tail = b""

    def follow(self, latest_first: Iterable[bytes]) -> None:
        """Go on behind an output, given by the bytes of its tokens, the last one first. Takes no
        more of them than a string could begin in, and looks for none."""
        parts, num_bytes = list[bytes](), 0
        for part in latest_first:
            if num_bytes >= self._keep:
                break
            parts.append(part)
            num_bytes += len(part)
        text = b"".join(reversed(parts))
        self._tail = text[-self._keep :] if self._keep else b""

    def push(self, token_bytes: bytes) -> int | None:
        """Index of the string that ends first in the output so far, or None."""
        text, num_old = self._tail + token_bytes, len(self._tail)
        ends = [
            (start + len(string), index)
            for index, string in enumerate(self._strings)
            if (start := text.find(string, max(0, num_old - len(string) + 1))) != _NOT_FOUND
        ]
        self._tail = text[-self._keep :] if self._keep else b""
        return min(ends)[1] if ends else None
