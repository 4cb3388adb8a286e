"""The text of an answer while the model writes it: what stands behind the last mark.

Pieces may be cut anywhere. What has been said, put together since the last beginning, is at the end
the text that an answer has which is read as a whole.
"""

from __future__ import annotations

from typing import NamedTuple


class SaidText(NamedTuple):
    """``begins_again``: what was said before is void, because another mark came."""

    text: str
    begins_again: bool = False


def behind(mark: str | None, text: str) -> str:
    """The text behind the last ``mark``, or all of it if the model has not written it."""
    return (text.rpartition(mark)[2] if mark else text).strip()


class FinalAnswerText:
    """``feed`` the pieces in their order, then ``end``. Until the mark has come nothing is said;
    if it never comes the whole text is said at the end."""

    def __init__(self, mark: str | None, *, begins_again: bool = False) -> None:
        """``begins_again``: something was said that is void."""
        self._mark, self._void = mark or "", begins_again
        self._text = ""
        self._start = None if self._mark else 0
        self._said = ""

    def feed(self, piece: str) -> SaidText | None:
        """What can be said now."""
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
        """What is left to say."""
        return self._say(self._text[self._start or 0 :].strip())

    def _num_of_a_mark(self) -> int:
        """Characters at the end with which another mark may have begun."""
        sizes = range(len(self._mark) - 1, 0, -1)
        return next((num for num in sizes if self._text.endswith(self._mark[:num])), 0)

    def _say(self, answer: str) -> SaidText | None:
        new, self._said = answer[len(self._said) :], answer
        begins_again, self._void = self._void, False
        return SaidText(new, begins_again) if new or begins_again else None
