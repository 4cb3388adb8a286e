"""Service: what programs, their threads and their commands have had of engines, and waited for.

Owns how a message's time and tokens are divided among the commands that it carried, when a command
counts as waiting, and how critical paths grow. Two measures of time: *service* is the time of the
messages that carried anything of a command, thread, program or family, each message once (Autellix
4.2 takes a call's execution time so); *cost* is its share of those messages by tokens, which adds
up to the engine's time. Service and waiting of a command in spare time count for the command alone:
no other would have had that time, so it must not put its program behind others.

A critical path (Autellix 4.2.1, algorithm 1) is one number for each program. A call takes the
program's number over when it arrives. When it ends, it raises the number to its own start plus its
service, if that is larger. A program takes over its parent's when it is launched, and raises it
when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.programs.call_notes import note_message
from quire.control.programs.program import Entry, Program
from quire.core.policy import ServiceFigures


def charge(entries: Sequence[Entry], num_tokens: Sequence[int], elapsed_s: float) -> None:
    """Charge a message of ``elapsed_s`` to ``entries``, for each of which it computed
    ``num_tokens``: for its command, or pages of its program again."""
    total = sum(num_tokens) or 1
    for index, entry in enumerate(entries):
        entry.program.cost_s += elapsed_s * num_tokens[index] / total
        entry.service_tokens += num_tokens[index]
        if not entry.queue.is_spare:
            _count_tokens(entry, num_tokens[index])
    families = {entry.program.family for entry in entries}
    if len(families) == len(entries):  # the usual case: no figures occur twice
        for entry in entries:
            entry.service_s += elapsed_s
            if entry.queue.is_spare:
                continue
            program = entry.program
            program.figures.service_s += elapsed_s
            program.family_figures.service_s += elapsed_s
            thread_figures(entry).service_s += elapsed_s
        return
    served: dict[int, ServiceFigures] = {}
    for entry in entries:
        if entry.queue.is_spare:
            continue
        for figures in (entry.program.figures, entry.program.family_figures, thread_figures(entry)):
            served[id(figures)] = figures
    for figures in served.values():
        figures.service_s += elapsed_s
    for entry in set(entries):
        entry.service_s += elapsed_s


def _count_tokens(entry: Entry, num_tokens: int) -> None:
    program = entry.program
    program.figures.service_tokens += num_tokens
    program.family_figures.service_tokens += num_tokens
    thread_figures(entry).service_tokens += num_tokens


def thread_figures(entry: Entry) -> ServiceFigures:
    """The figures of the thread that ``entry`` serves."""
    view = entry.view
    if view is not None:  # it is at hand once the command could be scheduled
        return view.thread_figures
    return entry.program.threads.figures(entry.queue.thread)


def note_path(entry: Entry) -> None:
    """Lengthen the critical paths of the program and family of ``entry``, which has ended."""
    if entry.queue.is_spare:
        return
    program = entry.program
    path_s = entry.path_s + entry.service_s
    path_tokens = entry.path_tokens + entry.service_tokens
    _lengthen(program.figures, path_s, path_tokens)
    _lengthen(program.family_figures, path_s, path_tokens)


def note_child_path(child: Program, parent: Program) -> None:
    """Lengthen the critical path of ``parent`` by that of ``child``, which has ended: what the
    parent does next comes after it."""
    if child.family_figures is parent.family_figures:
        _lengthen(parent.figures, child.figures.path_s, child.figures.path_tokens)


def _lengthen(figures: ServiceFigures, path_s: float, path_tokens: int) -> None:
    if path_s > figures.path_s:
        figures.path_s = path_s
    if path_tokens > figures.path_tokens:
        figures.path_tokens = path_tokens


def note_sent(entry: Entry, number: int, now_s: float) -> None:
    """Note that message ``number`` with ``entry`` is sent. If none in flight carries it, it has
    waited since it was ready, or was served last. A command behind others of its queue waits for
    those, and not for the engine."""
    if not entry.num_in_flight and entry.queue.entries[0] is entry:
        note_waited(entry, now_s)
    entry.num_in_flight += 1
    note_message(entry, number, now_s)


def note_waited(entry: Entry, now_s: float) -> None:
    """Count the time since ``ready_s``, when ``entry`` could have gone on, as waiting time."""
    waited_s = now_s - entry.ready_s
    if waited_s > 0:
        entry.waiting_s += waited_s
        if entry.queue.is_spare:
            return
        program = entry.program
        program.figures.waiting_s += waited_s
        program.family_figures.waiting_s += waited_s
        thread_figures(entry).waiting_s += waited_s
