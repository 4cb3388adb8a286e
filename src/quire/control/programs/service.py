"""Service: what programs, their threads and their commands have had of engines, and waited for.

Owns how a message's time and tokens are divided among whom it carried, and when a command counts as
waiting. Two measures of time: *service* is the time of the messages that carried anything of a
command, thread or program, each message once (Autellix 4.2 takes a call's execution time so);
*cost* is its share of those messages by tokens, which adds up to the engine's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.control.programs.program import Entry, Program
from quire.core.interfaces import ServiceFigures


@dataclass(slots=True)
class Share:
    """What one message computed for ``entry``: for its command, or pages of its program again."""

    entry: Entry
    num_tokens: int


def charge(shares: list[Share], elapsed_s: float) -> None:
    """A message with ``shares`` took the engine ``elapsed_s``."""
    total = sum([share.num_tokens for share in shares]) or 1
    served: set[Program] = set()
    threads: dict[int, ServiceFigures] = {}
    for share in shares:
        entry, num_tokens = share.entry, share.num_tokens
        program = entry.program
        program.cost_s += elapsed_s * num_tokens / total
        program.figures.service_tokens += num_tokens
        served.add(program)
        thread = program.thread_figures(entry.queue.thread)
        thread.service_tokens += num_tokens
        threads[id(thread)] = thread
    for program in served:
        program.figures.service_s += elapsed_s
    for thread in threads.values():
        thread.service_s += elapsed_s


def note_sent(entry: Entry, now_s: float) -> None:
    """A message with ``entry`` is sent: if none in flight carries it, it has waited since it was
    ready, or was served last. What stands behind other commands of its queue waits for those, and
    not for the engine."""
    if not entry.num_in_flight and entry.queue.entries[0] is entry:
        note_waited(entry, now_s)
    entry.num_in_flight += 1


def note_waited(entry: Entry, now_s: float) -> None:
    """``entry`` could have gone on since ``ready_s`` and does so now."""
    waited_s = now_s - entry.ready_s
    if waited_s > 0:
        program = entry.program
        program.figures.waiting_s += waited_s
        program.thread_figures(entry.queue.thread).waiting_s += waited_s
