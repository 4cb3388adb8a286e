"""What control notes of a call, a command that needs an engine, for those who look back at it.

Owns when a program is between two calls, and which messages have carried a call. Decides nothing.
"""

from __future__ import annotations

from quire.control.programs.program import Entry

MAX_SPANS = 32
"""Of the runs of messages that carried one call; beyond it the last one is drawn out."""


def note_call(entry: Entry) -> None:
    """``entry`` stands in its queue and needs an engine."""
    program = entry.program
    if not program.num_calls:
        entry.idle_since_s = program.last_call_s
    program.num_calls += 1


def note_call_end(entry: Entry, now_s: float) -> None:
    entry.program.num_calls -= 1
    entry.program.last_call_s = now_s


def note_message(entry: Entry, number: int, now_s: float) -> None:
    """A message with ``entry``, the one with this ``number``, is sent."""
    spans = entry.messages
    if not spans:
        entry.sent_s = now_s
        spans += (number, number)
    elif number - spans[-1] <= 1 or len(spans) >= 2 * MAX_SPANS:
        spans[-1] = number
    else:
        spans += (number, number)
