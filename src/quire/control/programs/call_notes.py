"""What control records of a call, a command that needs an engine, for later views of it.

Owns when a program is between two calls, and which messages have carried a call. Decides nothing.
"""

from __future__ import annotations

from quire.control.programs.program import Entry

MAX_SPANS = 32
"""The most runs of messages that are recorded for one call; then the last run is extended."""


def note_call(entry: Entry) -> None:
    """Note that ``entry``, which needs an engine, was queued."""
    program = entry.program
    if not program.num_calls:
        entry.idle_since_s = program.last_call_s
    program.num_calls += 1


def note_call_end(entry: Entry, now_s: float) -> None:
    entry.program.num_calls -= 1
    entry.program.last_call_s = now_s


def note_message(entry: Entry, number: int, now_s: float) -> None:
    """Note that message ``number`` with ``entry`` is sent."""
    last = entry.last_message
    if 0 <= last >= number - 1:  # as with most messages
        entry.last_message = number
    elif last < 0:
        entry.sent_s = now_s
        entry.first_message = entry.last_message = number
    elif len(entry.messages) < MAX_SPANS - 1:
        entry.messages.append((entry.first_message, last))
        entry.first_message = entry.last_message = number
    else:
        entry.last_message = number


def message_spans(entry: Entry) -> tuple[tuple[int, int], ...]:
    """The numbers of the messages that have carried ``entry``, as the first and last of each
    run."""
    if entry.last_message < 0:
        return ()
    return (*entry.messages, (entry.first_message, entry.last_message))


def forget_messages(entry: Entry) -> None:
    """Forget the messages of ``entry``, which moves to an engine with its own numbers."""
    entry.messages.clear()
    entry.last_message = -1
