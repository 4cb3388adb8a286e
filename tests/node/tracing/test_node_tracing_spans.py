"""Spans of what control tells, of a fake engine's calls in virtual time; and how they are sent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count

import pytest
from test_node_tracing_book import call, message, transfer

from quire.control import Controller
from quire.core import commands as c
from quire.core.calls import Cancel, CreateQueue
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.events import ProgramEnded, ProgramStarted
from quire.core.ids import CommandId, EngineId, ModelId, PageId, ProgramId, QueueId, TenantId
from quire.core.scheduler_config import SchedulerConfig
from quire.node.tracing.fan_out import Listeners
from quire.node.tracing.parents import SpanContext, TraceParents, parse
from quire.node.tracing.sending import SpanCounts, SpanSender
from quire.node.tracing.spans import ProgramEnd, Span, SpanMaker, Told
from quire.testing import ControlHarness, FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.engine import StepTime

ENGINE, MODEL = EngineId("fake"), ModelId("fake")
ONE, TWO = ProgramId(1), ProgramId(2)
CLIENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
CLIENT_TRACE, CLIENT_SPAN = int("a" * 32, 16), int("b" * 16, 16)
UNSAMPLED = CLIENT[:-1] + "0"
OFFSET_S = 1000.0


def make_maker(parents: TraceParents, **limits: int) -> SpanMaker:
    numbers = count(1)
    return SpanMaker(parents, lambda: OFFSET_S, lambda _: next(numbers), **limits)


class Scene:
    """A controller with a fake engine, whose messages take a second, and the spans of it."""

    def __init__(self, **pool: int) -> None:
        self.parents = TraceParents()
        self.maker = make_maker(self.parents)
        self.spans: list[Span] = []
        config = SchedulerConfig(max_steps_per_message=1, run_ahead=False)
        self.controller = Controller(config, listener=self)
        engine = FakeEngine(fake_pool(**pool), step_time=StepTime(base_s=1.0, per_token_s=0.0))
        self.harness = ControlHarness(self.controller, {ENGINE: engine})
        self._numbers = count(1)

    def _told(self, told: Told) -> None:
        self.spans += self.maker.spans(told)

    program_started = call_ended = transfer_ended = _told

    def message_ended(self, told: object) -> None:
        pass

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None:
        self._told(ProgramEnd(program, end_s, reason))

    def program(
        self, program: ProgramId, parent: ProgramId | None = None, form: str = "inferlet"
    ) -> None:
        started = ProgramStarted(
            time_s=self.harness.now_s,
            program=program,
            tenant=TenantId("t"),
            form=form,  # type: ignore[arg-type]
            name=f"p{program}",
            client_id="chat" if form == "session" else None,
            parent=parent,
        )
        self.harness.post(started)
        self.harness.call(program, CreateQueue(QueueId(1), MODEL))
        pages = [PageId(number) for number in range(4)]
        alloc = c.AllocPages(id=CommandId(next(self._numbers)), pages=pages)
        self.harness.issue(program, QueueId(1), alloc)

    def decode(
        self, program: ProgramId, num_tokens: int, issuer: int = 0, position: int = 0
    ) -> CommandId:
        number = CommandId((issuer << 32) + next(self._numbers))
        pages = [PageId(number) for number in range(4)]
        command = c.Decode(
            id=number, context=pages, output=pages, tokens=[7, 8, program], position=position,
            sampler=SamplerSpec(), stop=StopSpec(max_tokens=num_tokens),
        )  # fmt: skip
        self.harness.issue(program, QueueId(1), command)
        return number

    def run(self) -> None:
        self.harness.run_until_idle()

    def end(self, program: ProgramId, reason: str = "finished") -> Span:
        now_s = self.harness.now_s
        self.harness.post(ProgramEnded(time_s=now_s, program=program, reason=reason))
        return next(span for span in reversed(self.spans) if span.name.startswith("inferlet"))

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def test_two_calls_with_a_wait_between_them_below_their_program() -> None:
    scene = Scene()
    scene.program(ONE)
    scene.decode(ONE, 2)
    scene.run()
    scene.harness.clock.advance(5.0)
    scene.decode(ONE, 1, position=4)
    scene.run()
    program = scene.end(ONE)
    first, second = scene.named("text_completion fake")
    [wait] = scene.named("wait")
    assert (first.start_s, first.end_s) == (1000.0, 1002.0)
    assert (wait.start_s, wait.end_s) == (1002.0, 1007.0)
    assert (second.start_s, second.end_s) == (1007.0, 1008.0)
    assert (program.name, program.start_s, program.end_s) == ("inferlet p1", 1000.0, 1008.0)
    assert program.parent is None
    assert {span.parent for span in (first, second, wait)} == {program.context}
    assert len({span.context.span_id for span in scene.spans}) == 4
    assert {span.context.trace_id for span in scene.spans} == {program.context.trace_id}
    assert first.attributes == {
        "quire.process": 1,
        "quire.form": "inferlet",
        "quire.tenant": "t",
        "gen_ai.agent.name": "p1",
        "gen_ai.provider.name": "quire",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "fake",
        "gen_ai.response.time_to_first_chunk": 1.0,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 2,
        "quire.call.kind": "decode",
        "quire.call.outcome": "done",
        "quire.prefilled_tokens": 3,
        "quire.thread": 0,
        "quire.waiting_s": 0.0,
        "quire.service_s": 2.0,
        "quire.preemptions": 0,
        "quire.engine": "fake",
    }
    assert (program.attributes["quire.calls"], program.attributes["quire.service_s"]) == (2, 3.0)


def test_a_child_stands_below_its_parent() -> None:
    scene = Scene()
    scene.program(ONE)
    scene.program(TWO, parent=ONE)
    child, root = scene.end(TWO), scene.end(ONE, "failed")
    assert child.parent == root.context
    assert child.context.trace_id == root.context.trace_id
    assert (child.error, root.error) == (None, "failed")


def test_a_client_stands_above_the_program_that_it_starts() -> None:
    scene = Scene()
    scene.parents.note(ONE, CLIENT)
    scene.program(ONE)
    scene.decode(ONE, 1)
    scene.run()
    program = scene.end(ONE)
    [span] = scene.named("text_completion fake")
    assert program.parent == SpanContext(CLIENT_TRACE, CLIENT_SPAN)
    assert (program.is_remote, program.context.trace_id) == (True, CLIENT_TRACE)
    assert (span.parent, span.is_remote) == (program.context, False)


def test_a_client_stands_above_the_calls_of_its_request_alone() -> None:
    scene = Scene()
    scene.program(ONE, form="session")
    scene.parents.note(ONE, CLIENT, 3)
    scene.decode(ONE, 1, issuer=3)
    scene.run()
    scene.decode(ONE, 1, issuer=4, position=3)
    scene.run()
    scene.harness.post(ProgramEnded(time_s=2.0, program=ONE))
    mine, other = scene.named("text_completion fake")
    [session] = scene.named("session")
    assert mine.parent == SpanContext(CLIENT_TRACE, CLIENT_SPAN)
    assert (mine.is_remote, mine.link) == (True, session.context)
    assert (other.parent, other.link) == (session.context, None)
    assert mine.attributes["gen_ai.conversation.id"] == "chat"


def test_what_a_client_does_not_sample_is_not_kept() -> None:
    scene = Scene()
    scene.parents.note(ONE, UNSAMPLED)
    scene.program(ONE)
    scene.program(TWO, parent=ONE)
    for program in (ONE, TWO):
        scene.decode(program, 1)
    scene.run()
    scene.parents.note(TWO, CLIENT, 5)
    scene.decode(TWO, 1, issuer=5, position=3)
    scene.run()
    for program in (TWO, ONE):
        scene.harness.post(ProgramEnded(time_s=9.0, program=program))
    assert [(span.name, span.is_remote) for span in scene.spans] == [("text_completion fake", True)]


def test_a_lost_engine_and_a_cancelled_call() -> None:
    scene = Scene()
    scene.program(ONE)
    scene.program(TWO)
    cancelled = scene.decode(TWO, 9)
    scene.harness.step()
    scene.harness.call(TWO, Cancel(cancelled))
    scene.run()
    scene.decode(ONE, 9)
    scene.harness.step()
    scene.harness.lose_engine(ENGINE)
    first, second = scene.named("text_completion fake")
    assert (first.attributes["quire.call.outcome"], first.error) == ("cancelled", None)
    assert second.attributes["quire.call.outcome"] == "failed"
    assert second.attributes["error.type"] == "engine_lost"
    assert second.error is not None
    assert "lost by the test" in second.error


def test_a_swap_is_a_span_of_the_program_whose_pages_move() -> None:
    scene = Scene(num_blocks=4, num_host_blocks=16)
    scene.program(ONE)
    scene.program(TWO)
    scene.decode(ONE, 13)
    scene.run()
    scene.decode(TWO, 13)
    scene.run()
    swaps = scene.named("swap out")
    program = scene.end(ONE)
    assert {swap.parent for swap in swaps} == {program.context}
    assert {swap.attributes["quire.engine"] for swap in swaps} == {"fake"}
    pool = scene.controller.statistics().engines[0].pool
    assert sum(int(swap.attributes["quire.blocks"]) for swap in swaps) == pool.num_swapped_out > 0
    assert all(1000.0 < swap.start_s <= swap.end_s for swap in swaps)


def test_what_is_told_of_an_unknown_program_makes_no_span() -> None:
    maker = make_maker(TraceParents(), max_programs=1)
    for told in (call(9, 1), transfer(9, 1), transfer(None, 1), ProgramEnd(TWO, 1.0, "finished")):
        assert list(maker.spans(told)) == []


def test_a_program_that_runs_keeps_its_spans_however_many_have_ended_since() -> None:
    maker = make_maker(TraceParents(), max_programs=2)
    assert list(maker.spans(started(1))) == []
    for program in range(10, 40):
        assert list(maker.spans(started(program))) == []
        assert len(list(maker.spans(ProgramEnd(ProgramId(program), 1.0, "finished")))) == 1
    assert len(list(maker.spans(call(1, 1)))) == 1
    assert len(list(maker.spans(call(39, 2)))) == 1, "it was in flight as its program ended"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-" + "0" * 32 + "-" + "b" * 16 + "-01",
        "00-" + "a" * 32 + "-" + "0" * 16 + "-01",
        "00-" + "A" * 32 + "-" + "b" * 16 + "-01",
        "ff" + CLIENT[2:],
        CLIENT + "-more",
        CLIENT[:-1],
    ],
)
def test_a_traceparent_that_is_not_valid_is_ignored(text: str) -> None:
    assert parse(text) is None
    parents = TraceParents()
    parents.note(ONE, text)
    assert parents.of(ONE) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse("01" + CLIENT[2:] + "-more") == SpanContext(CLIENT_TRACE, CLIENT_SPAN, True)
    assert parse(UNSAMPLED) == SpanContext(CLIENT_TRACE, CLIENT_SPAN, False)


def test_the_span_of_a_running_call_is_known_however_many_come_after_it() -> None:
    parents = TraceParents(max_remembered=2)
    parents.note(ONE, CLIENT, 7)
    for program in range(100, 103):
        parents.note(ProgramId(program), CLIENT)
    assert parents.of(ONE, 7) == parse(CLIENT)
    parents.ended(ONE, 7)
    assert parents.of(ONE, 7) == parse(CLIENT), "control has not told of its end yet"
    for program in range(103, 106):
        parents.note(ProgramId(program), CLIENT)
    assert parents.of(ONE, 7) is None


def test_a_bounded_number_of_clients_spans_is_remembered() -> None:
    parents = TraceParents(max_remembered=2)
    for program in (1, 2, 3):
        parents.note(ProgramId(program), CLIENT)
    assert [parents.of(ProgramId(n)) is not None for n in (1, 2, 3)] == [False, True, True]


# -- sending ---------------------------------------------------------------------------------------


class Exporter:
    """Takes spans when it is let, and answers what the test says."""

    def __init__(self) -> None:
        self.answer: bool | Exception = True
        self.let = threading.Event()
        self.entered = threading.Event()
        self.names: list[str] = []

    def __call__(self, spans: Sequence[Span]) -> bool:
        self.entered.set()
        assert self.let.wait(60)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer:
            self.names += [span.name for span in spans]
        return self.answer


def started(program: int) -> ProgramStarted:
    return ProgramStarted(
        time_s=0.0, program=ProgramId(program), tenant=TenantId("t"), form="inferlet", name="p"
    )


def make_sender(exporter: Exporter, max_queued: int = 100) -> SpanSender:
    maker = make_maker(TraceParents())
    return SpanSender(maker, exporter, max_queued=max_queued, gather_s=0.0)


def test_what_is_queued_is_sent_at_the_end() -> None:
    exporter = Exporter()
    exporter.let.set()
    sender = make_sender(exporter)
    told = Listeners([sender])
    told.program_started(started(1))
    told.call_ended(call(1, 1))
    told.message_ended(message(1))
    told.transfer_ended(transfer(1, 2))
    told.program_ended(ONE, 2.0, "finished")
    sender.start()
    sender.close()
    assert exporter.names == ["text_completion m", "swap out", "inferlet p"]
    assert sender.counts() == SpanCounts(num_sent=3)


def test_a_slow_collector_costs_control_nothing_and_drops_are_counted() -> None:
    exporter = Exporter()
    sender = make_sender(exporter, max_queued=10)
    sender.program_started(started(1))
    sender.call_ended(call(1, 1))
    sender.start()
    assert exporter.entered.wait(60)
    for command in range(25):
        sender.call_ended(call(1, command))
    assert sender.counts() == SpanCounts(num_dropped=15)
    exporter.let.set()
    sender.close(60)
    assert sender.counts() == SpanCounts(num_sent=11, num_dropped=15)


@pytest.mark.parametrize("answer", [False, OSError("no route")])
def test_spans_that_a_collector_does_not_take_are_counted_and_the_next_are_sent(
    answer: bool | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Exporter()
    exporter.answer = answer
    exporter.let.set()
    sender = make_sender(exporter)
    sender.program_started(started(1))
    for command in range(600):
        sender._queue.append(call(1, command))
    sender._drain()
    assert sender.counts() == SpanCounts(num_failed=600)
    said = [record for record in caplog.records if "does not take spans" in record.message]
    assert len(said) == 1, "once, for two batches"
    assert sum(record.exc_info is not None for record in caplog.records) == (answer is not False)
    exporter.answer = True
    sender.call_ended(call(1, 601))
    sender._drain()
    assert sender.counts() == SpanCounts(num_sent=1, num_failed=600)
