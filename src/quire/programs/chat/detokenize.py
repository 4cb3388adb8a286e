"""Token ids to text as they arrive: complete UTF-8, without stop strings or parts of them.

Owns the bytes that may not be returned yet: an incomplete character, and the possible start of a
stop string. The concatenated text is the same however the tokens are divided among calls.
"""

from __future__ import annotations

import codecs
from collections.abc import Container, Sequence

from quire.core.interfaces import Tokenizer
from quire.programs.chat.markers import num_suspect


class TextStream:
    """The text of one output. Call ``add``, then ``finish`` once.

    ``stop``: the text ends before the first of these (after it with ``include_stop``).
    ``skip_special``: special tokens add nothing, except those in ``shown``; else their own text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        shown: Container[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = [text.encode() for text in stop]
        self._include_stop = include_stop
        self._skip_special = skip_special
        self._shown = shown
        self._held = b""
        self._undecoded = b""
        self._stopped = False
        self.matched: str | None = None

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that is available after ``token_ids``; empty after a stop string."""
        if self._stopped:
            return ""
        if len(token_ids) == 1:
            told = self._bytes(token_ids[0])
        else:
            told = b"".join([self._bytes(token_id) for token_id in token_ids])
        if not self._stops:
            return self._decode(told)
        self._held += told
        end = self._find_stop()
        if end is not None:
            self._stopped = True
            told, self._held = self._held[:end], b""
            return self._decode(told, final=True)
        keep = self._num_suspect()
        told, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        return self._decode(told)

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        if self._stopped:
            return ""
        self._stopped = True
        rest, self._held = self._held, b""
        return self._decode(rest, final=True)

    def _decode(self, told: bytes, *, final: bool = False) -> str:
        """Whole characters; bytes of an incomplete character wait for the rest, unless
        ``final``."""
        if self._undecoded:
            told = self._undecoded + told
        text, num_used = codecs.utf_8_decode(told, "replace", final)
        self._undecoded = told[num_used:]
        return text

    def _bytes(self, token_id: int) -> bytes:
        piece = self._tokenizer.token_bytes(token_id)
        if not piece and (not self._skip_special or token_id in self._shown):
            return self._tokenizer.decode([token_id]).encode()
        return piece

    def _find_stop(self) -> int | None:
        """The end of the text if a stop string was found: the one that is complete first."""
        best: tuple[int, int, bytes] | None = None
        for stop in self._stops:
            start = self._held.find(stop)
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        if best is None:
            return None
        end, start, stop = best
        self.matched = stop.decode()
        return end if self._include_stop else start

    def _num_suspect(self) -> int:
        """Length of the longest suffix of the held bytes that is a prefix of a stop string."""
        return max((num_suspect(self._held, stop) for stop in self._stops), default=0)
