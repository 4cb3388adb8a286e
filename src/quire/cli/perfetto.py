"""A program's trace in the trace event format, which ui.perfetto.dev and chrome://tracing open.

Owns the tracks. A program is a process of the format, in the order of its family's tree, with
tracks for itself, its calls, its waits and its transfers; an engine is one with its messages.
Slices of one track must not overlap, so slices that overlap are spread over several tracks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.server.schemas.traces import ProgramTrace, TraceCall, TracedProgram


@dataclass(frozen=True, slots=True)
class Slice:
    """One stretch of time on a track; ``track`` is the name of the track. Unix seconds."""

    track: str
    name: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)


def trace_file(trace: ProgramTrace) -> dict[str, Any]:
    """Return the file's content. Times count in microseconds from the first of all, which
    ``otherData`` has as Unix time."""
    programs = in_tree_order(trace.programs)
    start_s = min([one.start for one in trace.programs], default=0.0)
    start_s = min([start_s, *(message.sent for message in trace.messages)])
    events: list[dict[str, Any]] = []
    for index, (program, depth) in enumerate(programs):
        title = f"{'  ' * depth}{program.form} {program.name} ({program.id or program.process})"
        slices = list(_program_slices(program, trace.time))
        slices += _carrier_slices(program, trace)
        events += _track_events(index + 1, title, slices, start_s)
    for index, engine in enumerate(sorted({message.engine for message in trace.messages})):
        carried = [
            Slice(
                "messages",
                f"message {message.number}",
                message.start,
                message.end,
                {
                    "num_commands": message.num_commands,
                    "num_tokens": message.num_tokens,
                    "sent_ahead_s": message.start - message.sent,
                },
            )
            for message in trace.messages
            if message.engine == engine
        ]
        events += _track_events(len(programs) + index + 1, f"engine {engine}", carried, start_s)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"start_unix_s": str(start_s)},
    }


def in_tree_order(programs: Sequence[TracedProgram]) -> list[tuple[TracedProgram, int]]:
    """Return the programs with the depth of each, each parent before those below it."""
    known = {program.process for program in programs}
    below: dict[int | None, list[TracedProgram]] = {}
    for program in programs:
        parent = program.parent if program.parent in known - {program.process} else None
        below.setdefault(parent, []).append(program)
    ordered: list[tuple[TracedProgram, int]] = []
    waiting = [(program, 0) for program in reversed(below.get(None, []))]
    while waiting:
        program, depth = waiting.pop()
        ordered.append((program, depth))
        waiting += [(child, depth + 1) for child in reversed(below.get(program.process, []))]
    return ordered


def _program_slices(program: TracedProgram, now: float) -> Iterator[Slice]:
    yield Slice(
        "program",
        program.name,
        program.start,
        now if program.end is None else program.end,
        {
            "id": program.id,
            "process": program.process,
            "parent": program.parent,
            "tenant": program.tenant,
            "reason": program.reason,
            "num_calls": program.num_calls,
        },
    )
    for call in program.calls:
        shown = call.model_dump(exclude={"arrival", "end", "first_token", "sent"})
        name = call.kind if call.outcome == "done" else f"{call.kind} ({_state(call)})"
        yield Slice("calls", name, call.arrival, now if call.end is None else call.end, shown)
    for wait in program.waits:
        yield Slice("waits", "wait", wait.start, now if wait.end is None else wait.end)
    for transfer in program.transfers:
        yield Slice(
            "transfers",
            "send" if transfer.tier == "engine" else f"swap {transfer.direction}",
            transfer.start,
            transfer.end,
            transfer.model_dump(exclude={"start", "end"}),
        )


def _state(call: TraceCall) -> str:
    return call.error.code if call.error is not None else call.outcome or "under way"


def _carrier_slices(program: TracedProgram, trace: ProgramTrace) -> Iterator[Slice]:
    """Yield the messages that carried the program's calls."""
    carried = {
        (call.engine, number)
        for call in program.calls
        for first, last in call.messages
        for number in range(first, last + 1)
    }
    for message in trace.messages:
        if (message.engine, message.number) in carried:
            name = f"{message.engine} {message.number}"
            args = {"num_commands": message.num_commands, "num_tokens": message.num_tokens}
            yield Slice("messages", name, message.start, message.end, args)


def _track_events(
    pid: int, title: str, slices: Iterable[Slice], start_s: float
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        _metadata("process_name", pid, 0, {"name": title}),
        _metadata("process_sort_index", pid, 0, {"sort_index": pid}),
    ]
    by_track: dict[str, list[Slice]] = {}
    for one in slices:
        by_track.setdefault(one.track, []).append(one)
    tid = 0
    for track, found in by_track.items():
        for number, row in enumerate(_rows(found)):
            tid += 1
            name = track if not number else f"{track} {number + 1}"
            events.append(_metadata("thread_name", pid, tid, {"name": name}))
            events.append(_metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
            events += [_complete(one, pid, tid, start_s) for one in row]
    return events


def _rows(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Distribute ``slices`` over rows, as many as overlap at a time."""
    rows: list[list[Slice]] = []
    for one in sorted(slices, key=lambda one: (one.start, one.end)):
        row = next((row for row in rows if row[-1].end <= one.start), None)
        if row is None:
            rows.append([one])
        else:
            row.append(one)
    return rows


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _complete(one: Slice, pid: int, tid: int, start_s: float) -> dict[str, Any]:
    start_us = round((one.start - start_s) * 1e6, 3)
    end_us = round((one.end - start_s) * 1e6, 3)
    return {
        "name": one.name,
        "cat": one.track,
        "ph": "X",
        "ts": start_us,
        "dur": max(0.0, round(end_us - start_us, 3)),
        "pid": pid,
        "tid": tid,
        "args": one.args,
    }
