"""What a listener is told of calls: each of them once, with what it has had."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, MODEL, World
from encoding_world import EncodingWorld
from leases_world import PROMPT, LeaseWorld, settle

from quire.control import Controller
from quire.control.programs.call_notes import MAX_SPANS, message_spans, note_message
from quire.core.calls import Cancel, CloseQueue
from quire.core.events import ProgramEnded, ProgramStarted
from quire.core.ids import CommandId, ProgramId, QueueId, ThreadId
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import CallRecord, MessageRecord, TransferRecord
from quire.testing import ControlHarness, FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.engine import StepTime
from quire.testing.fake_engine.network import BYTES_PER_TOKEN, FakeNetwork

ONE = ProgramId(1)


class Told:
    """Everything that a listener is told, in order."""

    def __init__(self) -> None:
        self.started: list[ProgramStarted] = []
        self.ended: list[tuple[ProgramId, float, str]] = []
        self.calls: list[CallRecord] = []
        self.messages: list[MessageRecord] = []
        self.transfers: list[TransferRecord] = []

    def program_started(self, started: ProgramStarted) -> None:
        self.started.append(started)

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None:
        self.ended.append((program, end_s, reason))

    def call_ended(self, call: CallRecord) -> None:
        self.calls.append(call)

    def message_ended(self, message: MessageRecord) -> None:
        self.messages.append(message)

    def transfer_ended(self, transfer: TransferRecord) -> None:
        self.transfers.append(transfer)


def traced_world(told: Told, **pool: Any) -> World:
    """Every message takes a second and one step of each decode."""
    config = SchedulerConfig(max_steps_per_message=1, run_ahead=False)
    return World(
        engine=FakeEngine(fake_pool(**pool), step_time=StepTime(base_s=1.0, per_token_s=0.0)),
        controller=Controller(config, listener=told),
    )


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def world(told: Told) -> World:
    world = traced_world(told)
    world.program(1)
    return world


def test_a_call_is_told_with_its_times_and_tokens(told: Told, world: World) -> None:
    world.do(1, world.alloc(range(8)), world.decode(range(8), [7, 8, 9], 4))
    [call] = told.calls
    assert (call.program, call.kind, call.model, call.engine) == (1, "decode", MODEL, ENGINE)
    assert (call.arrival_s, call.sent_s, call.first_token_s, call.end_s) == (0.0, 0.0, 1.0, 4.0)
    assert (call.service_s, call.waiting_s) == (4.0, 0.0)
    assert (call.num_prefilled_tokens, call.num_generated_tokens) == (3, 4)
    assert (call.outcome, call.error, call.idle_since_s) == ("done", None, None)
    assert [started.program for started in told.started] == [1]


def test_the_messages_that_carried_a_call_are_found_by_their_numbers(
    told: Told, world: World
) -> None:
    world.do(1, world.alloc(range(8)), world.decode(range(8), [7, 8, 9], 4))
    [call] = told.calls
    assert call.messages == ((0, 3),)
    assert [message.number for message in told.messages] == [0, 1, 2, 3]
    assert [(one.sent_s, one.start_s, one.end_s) for one in told.messages] == [
        (float(n), float(n), n + 1.0) for n in range(4)
    ]
    assert [(one.num_commands, one.num_tokens) for one in told.messages] == [(1, 3)] + [(1, 1)] * 3


def test_a_message_sent_ahead_begins_when_the_one_before_has_ended(told: Told) -> None:
    engine = FakeEngine(fake_pool(), step_time=StepTime(base_s=1.0, per_token_s=0.0))
    config = SchedulerConfig(max_steps_per_message=1)
    world = World(engine=engine, controller=Controller(config, listener=told))
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), [7, 8, 9], 4))
    _, second, *_ = told.messages
    assert (second.sent_s, second.start_s, second.end_s) == (0.0, 1.0, 2.0)


def test_a_call_knows_since_when_its_program_had_none(told: Told, world: World) -> None:
    world.do(1, world.alloc(range(8)), world.decode(range(8), [7, 8, 9], 2))
    world.harness.clock.advance(5.0)
    world.queue(1, 2)
    world.issue(1, world.decode(range(8), [4], 4, position=5, context=[]))
    world.issue(1, world.alloc(range(20, 24)), world.decode(range(20, 24), [4], 2), queue=2)
    world.run()
    since = {(call.arrival_s, call.idle_since_s) for call in told.calls}
    assert since == {(0.0, None), (7.0, 2.0), (7.0, None)}, "the first of those that come together"


def test_time_in_which_another_program_runs_is_waiting(told: Told) -> None:
    world = traced_world(told, max_sequences=1)
    for program in (1, 2):
        world.program(program)
        pages = range(8)
        world.issue(program, world.alloc(pages), world.decode(pages, [program, 3], 3))
    world.run()
    first, second = told.calls
    assert (first.program, first.waiting_s) == (1, 0.0)
    assert (second.program, second.waiting_s, second.sent_s) == (2, 3.0, 3.0)
    assert second.messages == ((3, 5),)


def test_a_cancelled_call_is_told_when_its_last_message_has_ended(told: Told, world: World) -> None:
    outcome = world.issue(1, world.alloc(range(8)), world.decode(range(8), [7, 8], 8))[1]
    world.harness.step()
    world.harness.call(ONE, Cancel(outcome.command.id))
    assert told.calls == []
    world.run()
    [call] = told.calls
    assert (call.outcome, call.error, call.end_s) == ("cancelled", None, 2.0)
    assert call.num_generated_tokens == 2


def test_a_call_that_is_refused_is_told_with_its_error(told: Told, world: World) -> None:
    world.issue(1, world.decode([99], [7], 2))
    [call] = told.calls
    assert call.outcome == "failed"
    assert call.error is not None
    assert "99" in call.error.message
    assert (call.arrival_s, call.end_s, call.sent_s, call.messages) == (0.0, 0.0, None, ())
    world.issue(1, world.alloc(range(8)))
    assert len(told.calls) == 1, "what control does itself is no call"


def test_a_lost_engine_fails_its_calls_and_message_numbers_go_on(told: Told, world: World) -> None:
    world.issue(1, world.alloc(range(8)), world.decode(range(8), [7, 8], 8))
    world.harness.step()
    world.harness.lose_engine(ENGINE)
    [call] = told.calls
    assert call.outcome == "failed"
    assert call.error is not None
    assert call.error.code == "engine_lost"
    assert (call.messages, [one.number for one in told.messages]) == (((0, 1),), [0])
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool()))
    world.queue(1, 2)
    world.do(1, world.alloc(range(20, 24)), world.decode(range(20, 24), [7], 1), queue=2)
    assert told.calls[-1].messages == ((2, 2),), "no number means two messages"
    assert [one.number for one in told.messages] == [0, 2]


def test_a_preempted_call_has_gaps_between_its_messages(told: Told) -> None:
    world = traced_world(told, num_blocks=6, num_host_blocks=16)
    for program in (1, 2):
        world.program(program)
        world.issue(program, world.alloc(range(4)), world.decode(range(4), [program, 3, 4, 5], 12))
    world.run()
    preempted = [call for call in told.calls if call.num_preemptions]
    assert preempted, "two decodes that do not fit together"
    assert sum(call.num_preemptions for call in told.calls) == world.figures.num_preemptions
    for call in preempted:
        assert len(call.messages) > 1
        assert all(first <= last for first, last in call.messages)
        assert call.waiting_s > 0


def test_calls_of_a_program_that_has_ended_are_told_behind_its_end(
    told: Told, world: World
) -> None:
    world.issue(1, world.alloc(range(8)), world.decode(range(8), [7, 8], 8))
    world.harness.post(ProgramEnded(time_s=0.0, program=ONE, reason="cancelled"))
    assert told.ended == [(1, 0.0, "cancelled")]
    assert told.calls == []
    world.run()
    [call] = told.calls
    assert (call.outcome, call.end_s) == ("cancelled", 1.0)


def test_calls_under_way_are_shown_and_have_no_end(told: Told, world: World) -> None:
    world.issue(1, world.alloc(range(8)), world.decode(range(8), [7, 8], 8))
    world.harness.step()
    [call] = world.controller.calls(ONE)
    assert (call.outcome, call.end_s, call.sent_s, call.num_generated_tokens) == (
        None, None, 0.0, 1,
    )  # fmt: skip
    world.harness.call(ONE, CloseQueue(QueueId(1)))
    world.run()
    assert world.controller.calls(ONE) == ()
    assert world.controller.calls(ProgramId(9)) == ()


def test_the_fine_tier_has_a_call_for_each_command(told: Told, world: World) -> None:
    world.do(1, world.alloc(range(4)), world.alloc_embeds([0, 1]))
    world.do(
        1,
        world.embed([0], [7]),
        world.forward([], [0], range(4), [1]),
        world.sample([1], position=1),
    )
    assert [call.kind for call in told.calls] == ["embed_text", "forward", "sample"]
    assert [call.num_generated_tokens for call in told.calls] == [0, 0, 1]
    assert told.calls[1].num_prefilled_tokens == 1


def test_what_an_encoder_does_is_told_too(told: Told) -> None:
    world = EncodingWorld(listener=told)
    world.ask(world.program(1), 3, 2)
    world.harness.run_until_idle()
    [call] = told.calls
    assert (call.kind, call.engine, call.num_prefilled_tokens) == ("encode", "embedder#*", 5)
    [message] = told.messages
    assert call.messages == ((message.number, message.number),)
    assert (message.engine, message.num_commands, message.num_tokens) == ("embedder#*", 1, 5)


def test_a_call_of_many_turns_remembers_a_bounded_number_of_them(world: World) -> None:
    outcome = world.issue(1, world.alloc(range(8)), world.decode(range(8), [7, 8], 8))[1]
    found = world.controller._table.get(ONE)
    assert found is not None
    entry = found.entries[CommandId(outcome.command.id)]
    for number in range(2, 10 * MAX_SPANS, 2):
        note_message(entry, number, 0.0)
    spans = message_spans(entry)
    assert len(spans) == MAX_SPANS
    assert spans[-1][1] == 10 * MAX_SPANS - 2
    assert entry.queue.thread == ThreadId(0)


def crowded_world(told: Told, *, late_transfers: bool = False) -> World:
    """Program 1 is idle and fills the pool; program 2 comes and needs it."""
    world = traced_world(told, num_blocks=4, num_host_blocks=16)
    if late_transfers:
        engine = FakeEngine(world.engine.info.pool)
        world.harness = ControlHarness(
            world.controller, {ENGINE: engine}, late_transfers=late_transfers
        )
    for program in (1, 2):
        world.program(program)
    world.do(1, world.alloc(range(4)), world.decode(range(4), [1, *range(50, 62)], 3))
    world.harness.clock.advance(10.0)
    world.issue(2, world.alloc(range(4)), world.decode(range(4), [2, *range(50, 62)], 3))
    return world


def test_blocks_that_move_together_are_told_once_with_whose_they_are(told: Told) -> None:
    world = crowded_world(told)
    world.run()
    [out] = told.transfers
    assert (out.program, out.engine, out.direction, out.is_lost) == (1, ENGINE, "out", False)
    assert out.num_blocks == world.pool.num_swapped_out > 1
    assert out.num_bytes == out.num_blocks * world.pool.bytes_per_block
    assert (out.start_s, out.end_s) == (13.0, 14.0), "sent when program 2 needed the blocks"
    told.transfers.clear()
    world.do(1, world.decode(range(4), [9], 1, position=15))
    back = [one for one in told.transfers if one.direction == "in"]
    assert {one.program for one in back} == {1}, "for whom they come back"
    assert sum(one.num_blocks for one in back) == world.pool.num_swapped_in > 0
    assert {one.program for one in told.transfers if one.direction == "out"} == {2}


def test_transfers_of_an_engine_that_is_lost_are_told_as_lost(told: Told) -> None:
    world = crowded_world(told, late_transfers=True)
    while world.harness.step_engine(ENGINE):
        pass
    assert told.transfers == []
    world.harness.lose_engine(ENGINE)
    [lost] = told.transfers
    assert (lost.program, lost.direction, lost.is_lost) == (1, "out", True)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_send_to_another_engine_is_told_with_what_has_carried_it(is_cut: bool) -> None:
    told, network = Told(), FakeNetwork()
    sender, receiver = LeaseWorld(network, listener=told), LeaseWorld(network)
    lease = receiver.lease(PROMPT)
    pages = sender.computed(PROMPT)
    network.is_cut = is_cut
    sender.do(1, sender.send(pages, 0, len(PROMPT), lease))
    settle(sender, receiver)
    (sent,) = told.transfers
    assert (sent.program, sent.engine, sent.direction, sent.tier) == (ONE, ENGINE, "out", "engine")
    assert (sent.num_blocks, sent.transport, sent.is_lost) == (3, "in_process", is_cut)
    assert sent.num_bytes == (0 if is_cut else len(PROMPT) * BYTES_PER_TOKEN)
    assert sent.start_s <= sent.end_s
