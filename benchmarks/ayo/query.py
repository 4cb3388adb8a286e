"""``PacedQuery``: one query of an application, played against control in virtual time.

The graph is the optimiser's, which primitive may start is the graph scheduler's own state, and each
primitive asks control what its runner asks on a node. Only texts are replaced by their lengths, and
what belongs to no engine of control (chunker, vectors) takes its stated time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.ayo.stated import (
    ANSWER_TOKENS,
    CHUNK_TOKENS,
    INSTRUCTION_TOKENS,
    QUERY_TOKENS,
    QUESTION_TOKENS,
    Stated,
)
from quire.core.actions import Deliver, Fail, Terminate
from quire.core.calls import AskEncoder, CloseQueue, ControlCall, CreateQueue, Issue, SetQueueDepth
from quire.core.commands import AllocPages, Decode
from quire.core.decoding import DecodeChunk, SamplerSpec, StopSpec
from quire.core.encoding import Encode
from quire.core.events import Called, ProgramEnded, ProgramStarted
from quire.core.ids import CommandId, ModelId, PageId, ProgramId, QueueId, TenantId
from quire.programs.workflow import Graph
from quire.programs.workflow.object_store import GraphState
from quire.programs.workflow.primitives import Op, Primitive
from quire.simulation import Simulation

LLM, EMBEDDER, RANKER = ModelId("llm"), ModelId("embedder"), ModelId("ranker")
PAGES_OF_CALL = 128
PAGE_SIZE = 16
TOKENS_OF_PART = {"question": QUESTION_TOKENS, "answer": ANSWER_TOKENS, "context": CHUNK_TOKENS}


@dataclass(slots=True)
class _Call:
    """One call of the model. ``pending``: tokens of its prompt that nothing computes yet;
    ``marks``: who waits until so many tokens are written."""

    queue: QueueId
    pages: list[PageId]
    cursor: int = 0
    pending: int = 0
    num_written: int = 0
    has_begun: bool = False
    marks: list[tuple[int, Primitive]] = field(default_factory=list)


class PacedQuery:
    """``begin`` at its arrival; ``ended_s`` is set when its last primitive has ended."""

    def __init__(self, number: int, graph: Graph, simulation: Simulation, stated: Stated) -> None:
        self.program = ProgramId(number)
        self.begun_s: float | None = None
        self.ended_s: float | None = None
        self.ends_s: dict[str, float] = {}
        self._simulation, self._stated = simulation, stated
        self._state = GraphState(graph.e_graph, graph.query)
        self._graph = graph.e_graph
        self._calls: dict[str, _Call] = {}
        self._waiting: dict[CommandId, Callable[[Deliver], None]] = {}
        self._num_commands = 0
        self._num_calls = 0

    def begin(self) -> None:
        now_s = self.begun_s = self._simulation.now_s
        started = ProgramStarted(
            time_s=now_s,
            program=self.program,
            tenant=TenantId("default"),
            form="workflow",
            name="paced",
        )
        self._simulation.shell.post(started)
        self._start(self._state.start())

    def answered(self, action: Deliver | Fail | Terminate) -> None:
        """Control's answer; a paced query cannot fail."""
        assert isinstance(action, Deliver), action
        for command in (*action.done_before, action.command):
            if (told := self._waiting.get(command)) is not None:
                told(action)

    # -- the graph ---------------------------------------------------------------------------------

    def _start(self, primitives: list[Primitive]) -> None:
        for primitive in primitives:
            self._carry_out(primitive)

    def _finish(self, primitive: Primitive) -> None:
        # control is still at work when it answers: what follows comes behind that
        self._simulation.after(0.0, lambda: self._finish_now(primitive))

    def _finish_now(self, primitive: Primitive) -> None:
        self.ends_s[primitive.id] = self._simulation.now_s
        ready = self._state.finish(primitive.id, dict.fromkeys(primitive.outputs))
        self._start(ready)
        if not self._state.num_left:
            now_s = self.ended_s = self._simulation.now_s
            ended = ProgramEnded(time_s=now_s, program=self.program, reason="finished")
            self._simulation.shell.post(ended)

    def _carry_out(self, primitive: Primitive) -> None:
        stated, size = self._stated, primitive.size or 1
        match primitive.op:
            case Op.EMBEDDING:
                self._encode(EMBEDDER, primitive)
            case Op.RERANKING:
                self._encode(RANKER, primitive)
            case Op.PREFILLING | Op.PARTIAL_PREFILLING | Op.FULL_PREFILLING:
                self._prefill(primitive)
            case Op.DECODING | Op.PARTIAL_DECODING:
                self._decode(primitive)
            case Op.CHUNK | Op.PARSE:
                self._simulation.after(stated.chunk_s, lambda: self._finish_now(primitive))
            case Op.INGESTION:
                self._simulation.after(stated.ingest_s * size, lambda: self._finish_now(primitive))
            case Op.SEARCHING:
                self._simulation.after(stated.search_s * size, lambda: self._finish_now(primitive))
            case _:
                self._finish(primitive)

    # -- encoders ----------------------------------------------------------------------------------

    def _encode(self, model: ModelId, primitive: Primitive) -> None:
        num = primitive.size or 1
        ones, zeros = np.ones(num, np.int32), np.zeros(num, np.int32)
        command = Encode(id=self._command(), tokens=zeros, types=zeros, lengths=ones)
        self._waiting[command.id] = lambda action: self._encoded(primitive, action)
        self._post(
            AskEncoder(
                model,
                command,
                depth=primitive.depth,
                invocation=primitive.number,
                remaining_us=primitive.remaining_us,
            )
        )

    def _encoded(self, primitive: Primitive, action: Deliver) -> None:
        if action.last:
            del self._waiting[action.command]
            self._finish(primitive)

    # -- the model ---------------------------------------------------------------------------------

    def _prefill(self, primitive: Primitive) -> None:
        call = self._call_of(primitive)
        place = (primitive.depth, primitive.number, primitive.remaining_us)
        self._post(SetQueueDepth(call.queue, *place))
        call.pending += sum(
            TOKENS_OF_PART[part.name] if part.name else _length(part.text)
            for part in primitive.parts
        )
        if primitive.op is not Op.PARTIAL_PREFILLING:
            self._finish(primitive)  # the command that continues it computes the last part
            return
        num = call.pending - 1  # the last token may merge with what follows
        command = self._decode_command(call, num, max_tokens=0)
        call.pending -= num
        self._waiting[command.id] = lambda action: self._prefilled(primitive, action)
        self._post(Issue(call.queue, [command]))

    def _prefilled(self, primitive: Primitive, action: Deliver) -> None:
        del self._waiting[action.command]
        self._finish(primitive)

    def _decode(self, primitive: Primitive) -> None:
        call = self._call_of(primitive)
        if primitive.op is Op.PARTIAL_DECODING:
            num_elements = primitive.config["elements"]
            mark = QUERY_TOKENS * (primitive.first + 1)
            total = QUERY_TOKENS * num_elements
        else:
            total = QUERY_TOKENS * 3 if primitive.config["schema"] else ANSWER_TOKENS
            mark = total
        call.marks.append((mark, primitive))
        if not call.has_begun:
            call.has_begun = True
            command = self._decode_command(call, call.pending, max_tokens=total)
            self._waiting[command.id] = lambda action: self._written(call, action)
            self._post(Issue(call.queue, [command]))
        self._pass_marks(call)

    def _written(self, call: _Call, action: Deliver) -> None:
        if isinstance(action.reply, DecodeChunk):
            call.num_written += len(action.reply.token_ids)
        self._pass_marks(call)
        if action.last:
            del self._waiting[action.command]
            self._simulation.after(0.0, lambda: self._post(CloseQueue(call.queue)))

    def _pass_marks(self, call: _Call) -> None:
        passed = [one for mark, one in call.marks if mark <= call.num_written]
        call.marks = [(mark, one) for mark, one in call.marks if mark > call.num_written]
        for primitive in passed:
            self._finish(primitive)

    def _call_of(self, primitive: Primitive) -> _Call:
        """The call that the primitive's state belongs to; its first primitive begins it."""
        state = primitive.inputs.get("state")
        if state is not None:
            call = self._calls[state.primitive]
        else:
            self._num_calls += 1
            first = PAGES_OF_CALL * self._num_calls
            pages = [PageId(first + number) for number in range(PAGES_OF_CALL)]
            call = _Call(QueueId(self._num_calls), pages)
            self._post(CreateQueue(call.queue, LLM))
            self._post(Issue(call.queue, [AllocPages(id=self._command(), pages=pages)]))
        self._calls[primitive.id] = call
        return call

    def _decode_command(self, call: _Call, num_tokens: int, max_tokens: int) -> Decode:
        start, call.cursor = call.cursor, call.cursor + num_tokens
        # texts of two calls have nothing in common: what caching gains is measured elsewhere
        return Decode(
            id=self._command(),
            context=call.pages,
            output=call.pages,
            tokens=[1] * num_tokens,
            position=start,
            sampler=SamplerSpec(seed=1),
            stop=StopSpec(max_tokens),
            cache=False,
        )

    # -- control -----------------------------------------------------------------------------------

    def _command(self) -> CommandId:
        self._num_commands += 1
        return CommandId(self._num_commands)

    def _post(self, call: ControlCall) -> None:
        now_s = self._simulation.now_s
        self._simulation.shell.post(Called(time_s=now_s, program=self.program, call=call))


def _length(text: str) -> int:
    """Tokens of a literal part of a prompt: the instruction is the longest."""
    return INSTRUCTION_TOKENS if len(text) > 40 else len(text.split())
