"""The text of an answer while the model writes it: the text after the last mark.

Pieces may be cut anywhere. The returned texts since the last beginning, joined, are at the end the
same text as that of an answer that is read as a whole.
"""

from __future__ import annotations

from typing import NamedTuple


class SaidText(NamedTuple):
    """A part of the answer. ``begins_again``: earlier parts are void, because another mark came."""

    text: str
    begins_again: bool = False


def behind(mark: str | None, text: str) -> str:
    """The text after the last ``mark``; all of it if the model has not written the mark."""
    return (text.rpartition(mark)[2] if mark else text).strip()


class FinalAnswerText:
    """Finds the answer: ``feed`` the pieces in their order, then ``end``. Nothing is returned until
    the mark has come; if it never comes, ``end`` returns the whole text."""

    def __init__(self, mark: str | None, *, begins_again: bool = False) -> None:
        """``begins_again``: text was returned before that is void."""
        self._mark, self._void = mark or "", begins_again
        self._text = ""
        self._start = None if self._mark else 0
        self._said = ""

    def feed(self, piece: str) -> SaidText | None:
        """The part of the answer that is certain now."""
        unread = max(0, len(self._text) - len(self._mark) + 1)
        self._text += piece
        place = self._text.rfind(self._mark, unread) if self._mark else -1
        if place >= 0:
            self._void = self._void or bool(self._said)
            self._start, self._said = place + len(self._mark), ""
        if self._start is None:
            return None
        certain = self._text[self._start : len(self._text) - self._num_of_a_mark()]
        return self._say(certain.strip())

    def end(self) -> SaidText | None:
        """The rest of the answer."""
        return self._say(self._text[self._start or 0 :].strip())

    def _num_of_a_mark(self) -> int:
        """The number of characters at the end that may be the beginning of another mark."""
        sizes = range(len(self._mark) - 1, 0, -1)
        return next((num for num in sizes if self._text.endswith(self._mark[:num])), 0)

    def _say(self, answer: str) -> SaidText | None:
        new, self._said = answer[len(self._said) :], answer
        begins_again, self._void = self._void, False
        return SaidText(new, begins_again) if new or begins_again else None
