"""Makes spans of what control reports: of each program, call, wait between calls, and transfer.

Owns the spans' names and attributes (those of OpenTelemetry's GenAI conventions where there are
any, else ``quire.*``) and their parents. The parent of a call is the client's span of its request,
with a link to the program's span; without one it is the program's span. The parent of a program is
the client's span that started it, else the span of its parent program. Knows no library and no
wire; times are Unix times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from quire.core.events import ENGINE_WAS_LOST, ProgramStarted
from quire.core.ids import ProgramId
from quire.core.tracing import CallRecord, TransferRecord
from quire.node.sessions.ports import issuer_of
from quire.node.tracing.parents import SpanContext, TraceParents
from quire.node.tracing.reading import MIN_WAIT_S

MAX_PROGRAMS = 65_536
"""Programs that run whose spans are known."""

_KEPT_ENDS = 1024
"""Programs whose spans are known beyond their ends: their calls in flight end after them."""

_OPERATIONS = {"decode": "text_completion", "encode": "embeddings"}
_FAILED = ("failed", ENGINE_WAS_LOST)

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    program: ProgramId
    end_s: float
    reason: str


Told = ProgramStarted | ProgramEnd | CallRecord | TransferRecord


@dataclass(frozen=True, slots=True)
class Span:
    """``parent``: a span of the same trace. ``is_remote``: the parent is a client's. ``error``:
    what went wrong, if anything."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    start_s: float
    end_s: float
    attributes: dict[str, Attribute] = field(default_factory=dict)
    link: SpanContext | None = None
    is_remote: bool = False
    error: str | None = None


@dataclass(slots=True)
class _Program:
    started: ProgramStarted
    context: SpanContext
    parent: SpanContext | None
    is_remote: bool
    num_calls: int = 0
    service_s: float = 0.0
    waiting_s: float = 0.0


class SpanMaker:
    """Makes the spans. Belongs to one thread. ``random_bits(n)``: a number of n random bits, for
    ids."""

    def __init__(
        self,
        parents: TraceParents,
        offset_s: Callable[[], float],
        random_bits: Callable[[int], int],
        max_programs: int = MAX_PROGRAMS,
    ) -> None:
        self._parents = parents
        self._offset_s = offset_s
        self._random_bits = random_bits
        self._max_programs = max_programs
        self._programs: OrderedDict[ProgramId, _Program] = OrderedDict()
        self._ended: OrderedDict[ProgramId, _Program] = OrderedDict()

    def spans(self, told: Told) -> Iterator[Span]:
        """The spans that ``told`` completes; none for a program whose start was not reported."""
        if isinstance(told, ProgramStarted):
            self._start(told)
            return
        program = self._known(told.program)
        if isinstance(told, ProgramEnd):
            self._retire(told.program)
        if program is None or not self._is_kept(program, told):
            return
        if isinstance(told, CallRecord):
            yield from self._call(program, told)
        elif isinstance(told, TransferRecord):
            yield self._transfer(program, told)
        else:
            yield self._end(program, told)

    def _known(self, program: ProgramId | None) -> _Program | None:
        if program is None:
            return None
        return self._programs.get(program) or self._ended.get(program)

    def _retire(self, program: ProgramId) -> None:
        """Keep an ended program for a while, so that it takes no place of one that runs."""
        ended = self._programs.pop(program, None)
        if ended is not None:
            self._ended[program] = ended
            if len(self._ended) > _KEPT_ENDS:
                self._ended.popitem(last=False)

    def _is_kept(self, program: _Program, told: Told) -> bool:
        """Whether the trace is recorded, as the client has decided."""
        client = self._client(told) if isinstance(told, CallRecord) else None
        return (client or program.context).is_sampled

    def _client(self, call: CallRecord) -> SpanContext | None:
        return self._parents.of(call.program, issuer_of(call.command))

    def _new(self, parent: SpanContext | None) -> SpanContext:
        trace_id = self._random_bits(128) or 1 if parent is None else parent.trace_id
        is_sampled = parent is None or parent.is_sampled
        return SpanContext(trace_id, self._random_bits(64) or 1, is_sampled)

    def _start(self, started: ProgramStarted) -> None:
        parent = client = self._parents.of(started.program)
        above = self._known(started.parent)
        if client is None and above is not None:
            parent = above.context
        program = _Program(started, self._new(parent), parent, client is not None)
        self._programs[started.program] = program
        if len(self._programs) > self._max_programs:
            self._programs.popitem(last=False)

    def _end(self, program: _Program, end: ProgramEnd) -> Span:
        started = program.started
        attributes: dict[str, Attribute] = {
            **_common(started),
            "quire.end_reason": end.reason,
            "quire.calls": program.num_calls,
            "quire.service_s": program.service_s,
            "quire.waiting_s": program.waiting_s,
        }
        name = started.form if started.form == "session" else f"{started.form} {started.name}"
        return Span(
            name,
            program.context,
            program.parent,
            started.time_s + self._offset_s(),
            end.end_s + self._offset_s(),
            attributes,
            is_remote=program.is_remote,
            error=end.reason if end.reason in _FAILED else None,
        )

    def _call(self, program: _Program, call: CallRecord) -> Iterator[Span]:
        program.num_calls += 1
        program.service_s += call.service_s
        program.waiting_s += call.waiting_s
        offset_s = self._offset_s()
        idle_s = call.idle_since_s
        is_wait = idle_s is not None and call.arrival_s - idle_s >= MIN_WAIT_S
        if idle_s is not None and is_wait and program.context.is_sampled:
            yield self._below(program, "wait", idle_s, call.arrival_s, {})
        client = self._client(call)
        parent = client or program.context
        error = call.error
        attributes = {**_common(program.started), **_of_call(call)}
        if error is not None:
            attributes["error.type"] = error.code
        assert call.end_s is not None, "a call that is told has ended"
        yield Span(
            f"{_OPERATIONS.get(call.kind, call.kind)} {call.model}",
            self._new(parent),
            parent,
            call.arrival_s + offset_s,
            call.end_s + offset_s,
            attributes,
            link=None if client is None else program.context,
            is_remote=client is not None,
            error=None if error is None else error.message,
        )

    def _transfer(self, program: _Program, moved: TransferRecord) -> Span:
        attributes: dict[str, Attribute] = {
            "quire.engine": moved.engine,
            "quire.blocks": moved.num_blocks,
            "quire.bytes": moved.num_bytes,
            "quire.tier": moved.tier,
        }
        name = f"swap {moved.direction}"
        error = "the engine was lost or its disk failed" if moved.is_lost else None
        if moved.tier == "engine":
            name, attributes["quire.transport"] = "send", moved.transport
            error = "the other engine does not have all of it" if moved.is_lost else None
        return self._below(program, name, moved.start_s, moved.end_s, attributes, error)

    def _below(
        self,
        program: _Program,
        name: str,
        start_s: float,
        end_s: float,
        attributes: dict[str, Attribute],
        error: str | None = None,
    ) -> Span:
        offset_s = self._offset_s()
        return Span(
            name,
            self._new(program.context),
            program.context,
            start_s + offset_s,
            end_s + offset_s,
            {**_common(program.started), **attributes},
            error=error,
        )


def _common(started: ProgramStarted) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "quire.process": started.program,
        "quire.form": started.form,
        "quire.tenant": started.tenant,
    }
    if started.form == "session" and started.client_id is not None:
        attributes["gen_ai.conversation.id"] = started.client_id
    elif started.form != "session":
        attributes["gen_ai.agent.name"] = started.name
    return attributes


def _of_call(call: CallRecord) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": call.model,
        "gen_ai.usage.input_tokens": call.num_prefilled_tokens + call.num_cached_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.num_cached_tokens,
        "gen_ai.usage.output_tokens": call.num_generated_tokens,
        "quire.call.kind": call.kind,
        "quire.call.outcome": call.outcome or "",
        "quire.prefilled_tokens": call.num_prefilled_tokens,
        "quire.thread": call.thread,
        "quire.waiting_s": call.waiting_s,
        "quire.service_s": call.service_s,
        "quire.preemptions": call.num_preemptions,
    }
    if call.kind in _OPERATIONS:
        attributes["gen_ai.operation.name"] = _OPERATIONS[call.kind]
    if call.engine is not None:
        attributes["quire.engine"] = call.engine
    if call.first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = call.first_token_s - call.arrival_s
    return attributes
