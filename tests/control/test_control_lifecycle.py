"""Ends in every state: cancel, reset, close, program end, idle time, a lost engine; and replay."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from control_world import ENGINE, World, alone, queue_alone

from quire.control import Controller
from quire.control.programs.failures import MAX_KEPT
from quire.control.programs.id_ranges import IdRanges
from quire.control.programs.program import Entry
from quire.control.programs.states import TRANSITIONS, CommandState
from quire.core import commands as c
from quire.core.actions import Action, ProgramClosed
from quire.core.batch import Batch
from quire.core.batch_result import BatchResult
from quire.core.calls import Cancel, CloseQueue, ResetQueue
from quire.core.decoding import SamplerSpec
from quire.core.errors import EngineFault
from quire.core.events import BatchCompleted, Event, ProgramEnded
from quire.core.ids import CommandId, ProgramId, QueueId
from quire.core.scheduler_config import SchedulerConfig
from quire.core.wire import Codec
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool

PROMPT = [1, 2, 3, 4, 5]


def running(world: World, num_messages: int) -> Any:
    """A decode of program 1 after ``num_messages`` messages, another one in flight or two."""
    world.program(1)
    world.do(1, world.alloc(range(16)))
    decode = world.issue(1, world.decode(range(16), PROMPT, 40))[0]
    for _ in range(num_messages):
        world.harness.step_engine(ENGINE)
    return decode


@pytest.mark.parametrize("num_messages", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("run_ahead", [False, True])
def test_a_cancelled_decode_ends_after_its_last_message_and_its_pages_hold_what_it_said(
    num_messages: int, run_ahead: bool
) -> None:
    world = World(config={"run_ahead": run_ahead})
    decode = running(world, num_messages)
    world.harness.call(ProgramId(1), Cancel(decode.command.id))
    world.run()
    assert decode.status == "cancelled"
    assert decode.tokens == alone(PROMPT, 40)[: len(decode.tokens)]
    assert world.figures.num_open_sequences == 0
    if decode.tokens:
        told = len(decode.tokens)
        more = world.do(
            1,
            world.decode(range(16), [decode.tokens[-1]], 5, position=len(PROMPT) + told - 1),
        )[0]
        assert more.tokens == alone(PROMPT, 40)[told : told + 5]


@pytest.mark.parametrize("num_messages", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["reset", "close", "end"])
def test_everything_is_freed_in_every_state(num_messages: int, how: str) -> None:
    world = World()
    decode = running(world, num_messages)
    behind = world.issue(1, world.alloc([90]), world.dealloc([1]))
    now_s, program, queue = world.harness.now_s, ProgramId(1), QueueId(1)
    if how == "reset":
        world.harness.call(program, ResetQueue(queue))
    elif how == "close":
        world.harness.call(program, CloseQueue(queue))
    else:
        world.harness.post(ProgramEnded(time_s=now_s, program=program))
        assert decode.status == "cancelled", "answered at once: nobody will ask later"
    world.run()
    assert decode.status == "cancelled"
    assert all(outcome.status in ("done", "cancelled") for outcome in behind)
    if how == "reset":
        world.do(1, world.dealloc([*range(1), *range(2, 16)]))
    assert world.pool.num_held == 0
    assert world.figures.num_open_sequences == 0


def test_commands_after_others_of_the_program_wait_for_them_and_fail_with_them() -> None:
    world = World()
    world.program(1, queues=3)
    first = world.issue(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6))[1]
    second = world.issue(1, world.alloc([9], after=(first.command.id,)), queue=2)[0]
    assert second.status == "pending"
    world.run()
    assert (first.status, second.status) == ("done", "done")
    late = world.issue(1, world.alloc([12], after=(first.command.id,)), queue=2)[0]
    assert late.status == "done", "what it comes after has ended well long ago"
    bad = world.issue(1, world.dealloc([77]), queue=1)[0]
    third = world.issue(1, world.alloc([10], after=(bad.command.id,)), queue=3)[0]
    assert third.error is not None
    assert third.error.code == "queue_poisoned"


def test_a_command_after_one_that_ended_too_long_ago_is_refused() -> None:
    world = World()
    world.program(1, queues=3)
    done, bad = (world.issue(1, one)[0] for one in (world.alloc([1]), world.dealloc([77])))
    failed = world.controller._table.get(ProgramId(1)).failed
    for number in range(MAX_KEPT):
        failed.add(CommandId(bad.command.id + 1 + number))
    for queue, old in ((2, done), (3, bad)):
        later = world.issue(1, world.alloc([9], after=(old.command.id,)), queue=queue)[0]
        assert later.error is not None
        assert later.error.code == "unknown_handle"
        assert "is forgotten" in later.error.message


def test_an_idle_program_ends_by_its_time_to_live_and_an_active_one_does_not() -> None:
    world = World()
    world.program(1, idle_ttl_s=5.0)
    world.harness.clock.advance(4.0)
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 4))[1]
    last_s = world.harness.now_s
    while ProgramId(1) not in world.harness.terminated:
        world.harness.fire_timer()
    assert world.harness.now_s == pytest.approx(last_s + 5.0)
    assert world.harness.terminated[ProgramId(1)].code == "program_terminated"
    assert decode.status == "done"
    assert world.pool.num_held == 0
    assert world.controller.processes() == ()


def test_a_lost_engine_fails_what_was_in_flight_and_canonical_pages_are_computed_again() -> None:
    world = World()
    world.program(1)
    world.program(2)
    first = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6))[1]
    mask = [[True] * 4] * 4
    world.do(
        1,
        world.alloc([20]),
        world.alloc_embeds(range(5)),
        world.embed(range(4), range(4)),
        world.forward([], range(4), [20], mask=mask),
    )
    lost = world.issue(2, world.alloc(range(8)), world.decode(range(8), PROMPT, 30))[1]
    world.harness.lose_engine(ENGINE)
    assert lost.error is not None
    assert (lost.error.code, lost.error.retriable) == ("engine_lost", True)
    waiting = world.issue(
        1,
        world.decode(range(8), [first.tokens[-1]], 5, position=len(PROMPT) + 5),
    )[0]
    world.run()
    assert waiting.status == "pending"
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool()))
    world.run()
    assert waiting.tokens == alone(PROMPT, 11)[6:]
    opaque = world.do(1, world.decode([21], [9], 2, context=[20]), world.alloc([21]))[0]
    assert opaque.error is not None
    world.harness.call(ProgramId(1), ResetQueue(QueueId(1)))
    opaque = world.do(1, world.alloc([22]), world.decode([22], [9], 2, context=[20]))[1]
    assert opaque.error is not None
    assert opaque.error.code == "page_lost"
    world.harness.call(ProgramId(1), ResetQueue(QueueId(1)))
    anew = world.do(
        1,
        c.TruncatePage(id=world.id(), page=20, fill=0),
        world.decode([20], [9, 8], 2, context=[]),
    )[1]
    assert anew.tokens == alone([9, 8], 2)


def test_a_forward_that_has_run_in_part_ends_with_its_engine() -> None:
    """Its first embeds are read already and gone; one that has not begun waits."""
    world = World(max_batch_tokens=4)
    for program in (1, 2, 3):
        world.program(program, priority=1 if program == 2 else 0)
        world.do(program, world.alloc(range(4)), world.alloc_embeds(range(12)))
        world.do(program, world.embed(range(4), range(4)), world.embed(range(4, 8), range(4), 4))
        world.do(program, world.embed(range(8, 12), range(4), 8))
    begun = world.issue(1, world.forward([], range(12), range(4)))[0]
    urgent = world.issue(2, world.forward([], range(12), range(4)))[0]
    world.harness.step_engine(ENGINE)
    assert world.harness.num_in_flight(ENGINE) == 1, "the urgent one goes first now"
    world.harness.lose_engine(ENGINE)
    for outcome in (begun, urgent):
        assert outcome.error is not None
        assert outcome.error.code == "engine_lost"


def test_what_waits_for_a_decode_goes_on_each_time_that_one_ends() -> None:
    """A mask on a page that another queue's decode is still filling."""
    world = World()
    world.program(1, queues=2)
    for pages in (range(0, 4), range(10, 14)):
        decode = world.issue(1, world.alloc(pages), world.decode(pages, PROMPT, 6))[1]
        mask = c.MaskPage(id=world.id(), page=pages[0], visible=[True, False, True, True])
        (masked,) = world.issue(1, mask, queue=2)
        assert masked.status == "pending"
        world.run()
        assert (decode.status, masked.status) == ("done", "done")


def test_an_engine_keeps_no_tables_of_programs_that_have_ended() -> None:
    world = World()
    for program in (1, 2, 3, 4):
        world.program(program)
        world.do(program, world.alloc(range(4)), world.decode(range(4), PROMPT, 4))
        if program < 4:
            world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program)))
    assert len(world.engine.memory.tables) == world.figures.num_tables == 1


def test_closing_what_is_not_there_does_nothing() -> None:
    world = World()
    world.program(1)
    for _ in range(2):
        world.harness.call(ProgramId(1), CloseQueue(QueueId(9)))
    (outcome,) = world.do(1, world.alloc([1]))
    assert outcome.status == "done"


def test_an_embed_that_is_read_in_flight_is_free_behind_the_message() -> None:
    world = World()
    world.program(1, queues=2)
    num_embeds = world.figures.num_free_embeds
    world.do(1, world.alloc([0]), world.alloc_embeds([0]), world.embed([0], [5]))
    world.issue(1, world.forward([], [0], [0]))
    assert world.harness.num_in_flight(ENGINE) == 1
    (freed,) = world.issue(1, c.DeallocEmbeds(id=world.id(), embeds=[0]), queue=2)
    assert freed.status == "done"
    assert world.figures.num_free_embeds == num_embeds - 1
    world.run()
    assert world.figures.num_free_embeds == num_embeds


def test_prompt_logprobs_come_with_the_first_chunk_and_logprobs_with_each_token() -> None:
    world = World(max_batch_tokens=4)
    world.program(1)
    decode = world.do(
        1,
        world.alloc(range(8)),
        world.decode(range(8), PROMPT * 2, 3, num_logprobs=2, num_prompt_logprobs=1),
    )[1]
    first = decode.chunks[0]
    assert first.prompt_logprobs is not None
    assert [entry.token_id for entry in first.prompt_logprobs] == (PROMPT * 2)[1:]
    assert all(entry.logprob <= 0 and len(entry.top_ids) == 1 for entry in first.prompt_logprobs)
    tokens = [entry for chunk in decode.chunks for entry in chunk.logprobs or []]
    assert [entry.token_id for entry in tokens] == decode.tokens
    assert all(entry.top_ids[0] == entry.token_id for entry in tokens), "greedy takes the best"
    assert all(chunk.prompt_logprobs is None for chunk in decode.chunks[1:])


class Recorder:
    """A controller that keeps every event and the bytes of every action."""

    def __init__(self) -> None:
        self._controller = Controller(SchedulerConfig())
        self.events: list[Event] = []
        self.answers: list[bytes] = []

    def handle(self, event: Event) -> list[Action]:
        actions = self._controller.handle(event)
        self.events.append(event)
        self.answers.append(encode(actions))
        return actions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


def encode(actions: list[Action]) -> bytes:
    codec: Codec[Action] = Codec(Action)
    return b"|".join(bytes(frame) for action in actions for frame in codec.encode(action))


def test_the_same_events_give_the_same_bytes() -> None:
    recorder = Recorder()
    world = World(controller=cast(Controller, recorder), num_blocks=12, num_host_blocks=8)
    sampler = SamplerSpec(greedy=False)
    for program in range(1, 6):
        world.program(program, tenant=f"t{program % 2}")
        pages = range(8)
        world.issue(
            program,
            world.alloc(pages),
            world.decode(pages, [program, *PROMPT], 20, sampler=sampler),
        )
    world.run()
    assert recorder.statistics().engines[0].num_preemptions > 0
    again = Controller(SchedulerConfig())
    assert [encode(again.handle(event)) for event in recorder.events] == recorder.answers
    other = Controller(SchedulerConfig(), seed=1)
    assert [encode(other.handle(event)) for event in recorder.events[:12]] != recorder.answers[:12]


def test_a_stale_result_is_refused() -> None:
    world = World()
    decode = running(world, 1)
    assert decode.status == "pending"
    with pytest.raises(EngineFault, match="where"):
        world.controller.handle(
            BatchCompleted(time_s=1.0, engine=ENGINE, result=BatchResult(serial=99, elapsed_s=0.0))
        )


class _Broken(FakeEngine):
    """Sends scores of nothing, or nothing of its sequences."""

    def __init__(self, lacks: str) -> None:
        super().__init__(fake_pool())
        self._lacks = lacks

    def execute(self, batch: Batch) -> BatchResult:
        result = super().execute(batch)
        if self._lacks == "scores" and len(result.attention_starts):
            result.attention_starts = np.zeros(1, np.int32)
        elif self._lacks == "sequences":
            result.sequences = None
        return result


@pytest.mark.parametrize("lacks", ["scores", "sequences"])
def test_a_result_that_does_not_fit_lets_no_command_wait_for_ever(lacks: str) -> None:
    """Those of other programs in the same message neither."""
    world = World(engine=_Broken(lacks))
    for program in (1, 2, 3):
        world.program(program)
        world.issue(program, world.alloc(range(4)), world.alloc_embeds(range(4)))
    world.do(2, world.embed([0], [5]), world.forward([0], [0], [0], [0]))
    world.issue(3, world.embed([0], [5]))  # what follows goes together into the next message
    world.issue(1, world.embed([0], [5]), world.forward([0], [0], [0], [0], scores="slots"))
    world.issue(2, world.sample([0], position=1))
    world.issue(3, world.decode(range(4), PROMPT, 4))
    with pytest.raises(EngineFault, match=r"columns of a row|sequences for"):
        world.run()
    world.harness.lose_engine(ENGINE)
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool()))
    world.run()
    assert world.harness.pending() == []


def test_command_states_only_follow_the_table() -> None:
    queue = queue_alone(1)
    for state, following in TRANSITIONS.items():
        for to in CommandState:
            entry = Entry(c.Synchronize(id=CommandId(1)), queue, 0.0)
            entry.state = state
            if to in following:
                entry.move(to)
                assert entry.state is to
            else:
                with pytest.raises(AssertionError, match=f"from {state} to {to}"):
                    entry.move(to)


def test_ended_ids_are_kept_as_ranges() -> None:
    ids = IdRanges()
    for number in [5, 1, 3, 2, 4, 9, 4]:
        ids.add(number)
    assert [number in ids for number in (0, 1, 5, 6, 9, 10)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    assert ids.num_ranges == 2
    assert (ids.lowest, IdRanges().lowest) == (1, 0)


def test_ranges_are_bounded_and_the_lowest_become_one() -> None:
    ids = IdRanges(max_ranges=3)
    for number in (10, 20, 30):
        ids.add(number)
    assert 15 not in ids
    ids.add(40)
    assert ids.num_ranges == 3
    assert all(number in ids for number in (10, 15, 20, 30, 40))
    assert not any(number in ids for number in (9, 21, 25, 35, 41))


def test_a_program_that_has_ended_tells_once_what_it_has_used() -> None:
    world = World()
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 4))
    (row,) = world.controller.processes()
    ended = ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1), reason="failed")
    closed = [one for one in world.harness.post(ended) if isinstance(one, ProgramClosed)]
    assert closed == [
        ProgramClosed(
            program=ProgramId(1),
            form=row.form,
            reason="failed",
            num_prefilled_tokens=len(PROMPT),
            num_cached_tokens=0,
            num_generated_tokens=4,
            num_encoded_tokens=0,
            num_preemptions=0,
            service_s=row.service_s,
            waiting_s=row.waiting_s,
        )
    ]
    again = ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1))
    assert not any(isinstance(one, ProgramClosed) for one in world.harness.post(again))
