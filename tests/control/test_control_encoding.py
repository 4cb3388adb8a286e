"""Encoders under control: batches, shares, priorities, losses, ends, service."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from encoding_world import MODEL, EncodingWorld, encode_command, rows_of

from quire.core.actions import Deliver, Dispatch, ProgramClosed
from quire.core.calls import SPARE_PRIORITY, AskEncoder
from quire.core.encoding import Encode, EncodeBatch, EncodeResult
from quire.core.errors import EngineFault, EngineLost
from quire.core.events import BatchEncoded, EngineGivenUp, ProgramEnded
from quire.core.ids import CommandId, EngineId, ModelId, ProgramId, TenantId
from quire.core.policy import ReadyCommand
from quire.core.quotas import Quotas
from quire.testing.harness import CommandOutcome


def test_rows_come_back_in_the_order_of_the_sequences() -> None:
    world = EncodingWorld(max_batch_tokens=4)
    program = world.program(1)
    outcome = world.ask(program, 1, 2, 3, 1, 1)
    assert world.controller.processes()[0].state == "running"
    world.harness.run_until_idle()
    assert rows_of(outcome)[:, 7].tolist() == [1, 2, 3, 1, 1]
    assert [lengths for _, lengths in world.batches()] == [[1, 2], [3, 1], [1]]
    assert world.controller.processes()[0].state == "idle"


def test_a_batch_is_filled_with_sequences_of_many_programs() -> None:
    world = EncodingWorld()
    first = world.program(1)
    others = [world.program(number, tenant=f"t{number}") for number in range(2, 12)]
    asked = [world.ask(first, 1), world.ask(first, 1)]
    asked += [world.ask(program, 1, 1) for program in others]
    world.harness.run_until_idle()
    assert [len(lengths) for _, lengths in world.batches()] == [1, 1, 20]
    assert all(outcome.status == "done" for outcome in asked)


def test_a_batch_says_whose_each_sequence_is() -> None:
    """Numbers of tenants, which stay the same."""
    world = EncodingWorld()
    programs = [world.program(n, tenant=t) for n, t in enumerate("abab", 1)]
    for _ in range(2):
        for token, program in enumerate(programs):
            world.ask(program, 2, 2, token=token)
        world.harness.run_until_idle()
    batches = [one.batch for one in world.harness.dispatched if isinstance(one.batch, EncodeBatch)]
    tokens = np.concatenate([one.tokens[::2] for one in batches]).tolist()
    owners = np.concatenate([one.owners for one in batches]).tolist()
    assert len(owners) == 2 * 4 * 2
    assert set(zip(tokens, owners, strict=True)) == {(0, 0), (1, 1), (2, 0), (3, 1)}
    assert any(len(set(one.owners.tolist())) == 2 for one in batches)


def test_what_an_instance_has_reused_is_counted() -> None:
    world = EncodingWorld()
    program, (engine,) = world.program(1), world.instances
    world.ask(program, 1)
    rows = np.zeros((1, 8), np.float32)
    result = EncodeResult(number=1, rows=rows, num_reused_tokens=5, cache_bytes=70)
    world.harness.post(BatchEncoded(time_s=0.0, engine=engine, result=result))

    def figures() -> tuple[int, int]:
        ((instance,),) = [one.instances for one in world.controller.statistics().encoders]
        return instance.num_reused_tokens, instance.cache_bytes

    assert figures() == (5, 70)
    world.harness.lose_engine(engine)
    assert figures() == (5, 0)


def test_who_comes_while_a_batch_runs_may_stand_in_the_next_one() -> None:
    """The next batch is put together shortly before the running one should end."""
    world = EncodingWorld(policy="topology", max_batch_tokens=2, token_s=1.0)
    early, late = world.program(1), world.program(2)
    world.ask(early, 1, 1)
    world.harness.run_until_idle()  # what a token takes is known from here on
    world.ask(early, 1, 1, depth=1)
    world.ask(early, 1, 1, depth=1)
    (instance,) = world.instances
    assert world.harness.num_in_flight(instance) == 1, "the second one is held back"
    deep = world.ask(late, 1, depth=9)
    urgent = world.ask(early, 1, depth=5)
    world.harness.fire_timer()
    assert world.harness.now_s == pytest.approx(2.0 + 0.9 * 2.0)
    assert world.harness.num_in_flight(instance) == 2
    world.harness.step_engine(instance)
    world.harness.step_engine(instance)
    assert [deep.status, urgent.status] == ["done", "done"]
    world.harness.run_until_idle()
    world.controller.check_invariants()


def test_a_sequence_longer_than_a_batch_stands_alone_in_one() -> None:
    world = EncodingWorld(max_batch_tokens=4)
    outcome = world.ask(world.program(1), 9, 3, 2)
    world.harness.run_until_idle()
    assert [lengths for _, lengths in world.batches()] == [[9], [3], [2]]
    assert len(rows_of(outcome)) == 3


def test_tenants_have_their_shares_in_tokens() -> None:
    """One with twice the weight gets twice the tokens while both wait, however long the sequences
    of either are."""
    world = EncodingWorld(max_batch_tokens=12, weights={"a": 2.0, "b": 1.0})
    long, short = world.program(1, "a"), world.program(2, "b")
    world.ask(long, *[4] * 60)
    world.ask(short, *[1] * 240)
    for _ in range(12):
        world.harness.step()
    tokens = {row.tenant: row.num_encoded_tokens for row in world.controller.processes()}
    assert sum(tokens.values()) == 144
    assert 1.6 < tokens[TenantId("a")] / tokens[TenantId("b")] < 2.6


def test_a_tenant_that_floods_keeps_no_other_waiting() -> None:
    world = EncodingWorld(max_batch_tokens=8)
    flood, single = world.program(1, "a"), world.program(2, "b")
    world.ask(flood, *[1] * 800)
    outcome = world.ask(single, 1)
    for _ in range(3):  # two were on their way
        world.harness.step()
    assert outcome.status == "done"


def test_whose_sequence_did_not_fit_has_the_next_turn() -> None:
    """Else a tenant behind others who always fill the batch would wait for ever."""
    world = EncodingWorld(max_batch_tokens=8)
    wide, narrow = world.program(1, "a"), world.program(2, "b")
    world.ask(narrow, *[1] * 400)
    outcome = world.ask(wide, 8)
    for _ in range(4):
        world.harness.step()
    assert outcome.status == "done"


def test_within_a_tenant_priority_and_then_the_policy_say_who_goes() -> None:
    world = EncodingWorld(max_batch_tokens=4)
    low, high = world.program(1), world.program(2, priority=1)
    running = world.ask(low, 4, 4)
    early, late = world.ask(low, 4), world.ask(low, 4)
    urgent, first = world.ask(high, 4), world.ask(low, 4, priority=5)
    ended: list[CommandOutcome] = []
    while world.harness.step():
        ended += [
            o for o in world.harness.outcomes.values() if o.status == "done" and o not in ended
        ]
    assert ended == [running, first, urgent, early, late]


def test_spare_requests_have_small_batches_of_their_own_behind_all_others() -> None:
    world = EncodingWorld(max_batch_tokens=8, weights={"a": 1.0, "b": 0.01})
    spare, other = world.program(1, tenant="a"), world.program(2, tenant="b")
    running = world.ask(other, 1)
    late = world.ask(spare, 2, 2, 2, priority=SPARE_PRIORITY)
    first = world.ask(other, 3, 3)
    assert world.harness.step()
    behind = world.ask(other, 5)
    world.harness.run_until_idle()
    assert [lengths for _, lengths in world.batches()] == [[1], [3, 3], [5], [2], [2], [2]]
    assert all(one.status == "done" for one in (running, late, first, behind))


def test_a_policy_sees_depth_and_is_told_of_service() -> None:
    """Round robin gives each program its turn."""
    world = EncodingWorld(policy="round_robin", max_batch_tokens=2)
    one, two = world.program(1), world.program(2)
    world.ask(one, 2, 2)
    waiting = [world.ask(one, 2) for _ in range(3)]
    other = world.ask(two, 2, depth=3)
    for _ in range(4):
        world.harness.step()
    assert other.status == "done"
    assert [outcome.status for outcome in waiting].count("done") <= 1


def test_batches_go_to_the_instance_with_the_least_to_do() -> None:
    world = EncodingWorld(3, max_batch_tokens=8)
    program = world.program(1)
    world.ask(program, 8)
    world.ask(program, 2)
    world.ask(program, 4)
    world.ask(program, 1)
    first, second, third = world.instances
    assert [engine for engine, _ in world.batches()] == [first, second, third, second]


def test_what_waits_is_divided_among_idle_instances() -> None:
    world = EncodingWorld(2, max_batch_tokens=64)
    world.ask(world.program(1), *[2] * 16)
    assert [(engine, len(lengths)) for engine, lengths in world.batches()] == [
        (world.instances[0], 8),
        (world.instances[1], 8),
    ]


def test_a_cancelled_request_leaves_at_once_and_what_runs_of_it_is_not_told() -> None:
    world = EncodingWorld(max_batch_tokens=1, max_pending=10)
    program, other = world.program(1), world.program(2)
    gone = world.ask(program, *[1] * 10)
    assert world.ask(other, 1).status == "failed", "too many of the tenant wait"
    world.cancel(program, gone)
    while gone.status == "pending":
        assert world.harness.step()
    stays = world.ask(other, 1)
    world.harness.run_until_idle()
    assert (gone.status, stays.status) == ("cancelled", "done")
    assert not gone.replies
    assert len(world.batches()) == 3, "the two that were on their way, and the other's"


def test_a_request_that_has_not_begun_is_cancelled_at_once() -> None:
    world = EncodingWorld(max_batch_tokens=1)
    program = world.program(1)
    world.ask(program, 1, 1)
    waiting = world.ask(program, 1)
    pool = world.controller._encoding._schedulers[MODEL].pool
    assert pool.num_waiting_tokens == 1
    world.cancel(program, waiting)
    assert waiting.status == "cancelled"
    assert pool.num_waiting_tokens == 0
    world.harness.run_until_idle()
    assert len(world.batches()) == 2


def test_with_its_program_a_request_ends() -> None:
    world = EncodingWorld(max_batch_tokens=1)
    program = world.program(1)
    outcome = world.ask(program, *[1] * 5)
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=program, reason="done"))
    assert outcome.status == "cancelled"
    world.harness.run_until_idle()
    assert len(world.batches()) == 2
    assert world.controller.statistics().encoders[0].num_pending_sequences == 0


def test_what_a_lost_instance_had_is_done_by_another() -> None:
    world = EncodingWorld(2, max_batch_tokens=4)
    asked = [world.ask(world.program(number), 2, 2, 2) for number in (1, 2)]
    world.harness.lose_engine(world.instances[0])
    world.harness.run_until_idle()
    assert [len(rows_of(outcome)) for outcome in asked] == [3, 3]
    assert {engine for engine, _ in world.batches()[4:]} == {world.instances[1]}


def test_without_an_instance_requests_wait_for_one() -> None:
    world = EncodingWorld(max_batch_tokens=4)
    program = world.program(1)
    world.harness.lose_engine(world.instances[0])
    outcome = world.ask(program, 1)
    assert not world.batches()
    world.up(world.instances[0])
    world.harness.run_until_idle()
    assert outcome.status == "done"


def test_a_request_that_loses_two_instances_is_given_up_and_others_go_on() -> None:
    world = EncodingWorld(max_batch_tokens=4)
    program = world.program(1)
    outcome, later = world.ask(program, 4, 4, 4), world.ask(program, 4)
    for _ in range(2):
        world.harness.lose_engine(world.instances[0])
        world.up(world.instances[0])
    assert outcome.error is not None
    assert "lost twice" in outcome.error.message
    world.harness.run_until_idle()
    assert later.status == "done"


def test_who_is_cancelled_while_its_batch_is_lost_is_not_done_again() -> None:
    world = EncodingWorld(max_batch_tokens=4)
    program = world.program(1)
    outcome = world.ask(program, 4)
    world.cancel(program, outcome)
    world.harness.lose_engine(world.instances[0])
    assert outcome.status == "cancelled"
    world.up(world.instances[0])
    assert len(world.batches()) == 1


def test_given_up_with_its_last_instance_and_not_before() -> None:
    world = EncodingWorld(2, max_batch_tokens=4)
    program = world.program(1)
    error = EngineLost("five times").record()
    for left, instance in ((1, world.instances[0]), (0, world.instances[1])):
        outcome = world.ask(program, 4, 4, 4, 4, 4)
        world.harness.lose_engine(instance)
        world.harness.post(
            EngineGivenUp(time_s=world.harness.now_s, engine=instance, model=MODEL, error=error)
        )
        if left:
            world.harness.run_until_idle()
        assert outcome.status == ("done" if left else "failed")
    late = world.ask(program, 1)
    assert late.error is not None
    assert late.error.message == f"encoder {MODEL} cannot be served: five times"


def test_an_instance_that_comes_up_when_all_others_are_given_up_serves() -> None:
    world = EncodingWorld(1)
    program = world.program(1)
    (first,) = world.instances
    error = EngineLost("five times").record()
    world.harness.lose_engine(first)
    world.harness.post(
        EngineGivenUp(time_s=world.harness.now_s, engine=first, model=MODEL, error=error)
    )
    assert world.ask(program, 4).status == "failed"
    world.up(EngineId("late#1"))
    served = world.ask(program, 4)
    world.harness.run_until_idle()
    assert served.status == "done"


def test_what_cannot_be_run_is_refused_before_it_shares_a_batch() -> None:
    world = EncodingWorld()
    program = world.program(1)
    for number, (command, words) in enumerate(
        [
            (encode_command(1, [1, 65]), "sequence 1 has 65 tokens; the model reads 1 to 64"),
            (encode_command(1, [0]), "sequence 0 has 0 tokens"),
            (encode_command(1, []), "at least one sequence"),
            (encode_command(1, [2, 2], 1 << 16), "sequence 0 has token 65536"),
            (encode_command(1, [2], -1), "sequence 0 has token -1"),
        ]
    ):
        one = Encode(
            id=CommandId(100 + number),
            tokens=command.tokens,
            types=command.types,
            lengths=command.lengths,
        )
        world.harness.call(program, AskEncoder(MODEL, one))
        outcome = world.harness.outcomes[program, one.id]
        assert outcome.error is not None
        assert words in outcome.error.message
    segments = Encode(
        id=CommandId(200),
        tokens=np.ones(3, np.int32),
        types=np.asarray([0, 1, 2], np.int32),
        lengths=np.asarray([1, 2], np.int32),
    )
    world.harness.call(program, AskEncoder(MODEL, segments))
    error = world.harness.outcomes[program, segments.id].error
    assert error is not None
    assert "sequence 1 is of 3 segments; the model tells 2 apart" in error.message
    assert not world.batches()


@pytest.mark.parametrize(("place", "sequence"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 2)])
def test_a_refused_token_is_named_by_the_sequence_that_has_it(place: int, sequence: int) -> None:
    world = EncodingWorld()
    program = world.program(1)
    command = encode_command(1, [1, 2, 3])
    command.tokens[place] = -1
    world.harness.call(program, AskEncoder(MODEL, command))
    error = world.harness.outcomes[program, command.id].error
    assert error is not None
    assert f"sequence {sequence} has token -1" in error.message


def test_pending_commands_and_unknown_names_are_refused() -> None:
    world = EncodingWorld()
    program = world.program(1, quotas=Quotas(max_pending_commands=1))
    assert world.ask(program, 1).status == "pending"
    refused = world.ask(program, 1)
    assert refused.error is not None
    assert refused.error.code == "quota_exceeded"
    unknown = encode_command(500, [1])
    world.harness.call(program, AskEncoder(ModelId("other"), unknown))
    error = world.harness.outcomes[program, unknown.id].error
    assert error is not None
    assert "no encoder serves 'other'; there are: embedder" in error.message
    nobody = world.ask(ProgramId(99), 1)
    assert nobody.error is not None
    assert "program 99 is not known" in nobody.error.message


def test_service_is_charged_to_those_whose_sequences_were_encoded() -> None:
    world = EncodingWorld(max_batch_tokens=64, token_s=0.5)
    one, two = world.program(1, "a"), world.program(2, "b")
    world.ask(one, 1)
    world.ask(one, 1)
    world.ask(one, 3)
    world.ask(two, 1)
    world.harness.run_until_idle()
    rows = {row.program: row for row in world.controller.processes()}
    assert [len(lengths) for _, lengths in world.batches()] == [1, 1, 2]
    assert rows[one].num_encoded_tokens == 5
    assert rows[one].service_s == pytest.approx(0.5 + 0.5 + 2.0)
    assert rows[one].cost_s == pytest.approx(0.5 + 0.5 + 1.5)
    assert rows[two].service_s == pytest.approx(2.0)
    assert rows[two].cost_s == pytest.approx(0.5)
    assert rows[two].waiting_s == pytest.approx(1.0), "it waited for both batches"
    (encoder,) = world.controller.statistics().encoders
    assert encoder.instances[0].busy_s == pytest.approx(3.0)
    assert encoder.instances[0].num_tokens == 6
    assert encoder.instances[0].is_up
    ended = ProgramEnded(time_s=world.harness.now_s, program=one)
    (closed,) = [a for a in world.harness.post(ended) if isinstance(a, ProgramClosed)]
    assert closed.num_encoded_tokens == 5


def test_an_error_of_a_batch_is_told_to_all_in_it() -> None:
    world = EncodingWorld()
    program = world.program(1)
    outcome = world.ask(program, 1)
    error = EngineLost("no memory").record()
    result = EncodeResult(number=1, rows=np.empty((0, 0), np.float32), error=error)
    world.harness.post(BatchEncoded(time_s=0.0, engine=world.instances[0], result=result))
    assert outcome.error == error


@pytest.mark.parametrize(("number", "num_rows"), [(2, 1), (1, 2)])
def test_a_result_of_another_batch_is_a_fault(number: int, num_rows: int) -> None:
    world = EncodingWorld()
    world.ask(world.program(1), 1)
    result = EncodeResult(number=number, rows=np.zeros((num_rows, 8), np.float32))
    with pytest.raises(EngineFault, match="where 1 is due"):
        world.controller.handle(BatchEncoded(time_s=0.0, engine=world.instances[0], result=result))


def test_rows_never_tell_of_other_commands() -> None:
    """They go to the node, which has asked for the program; the program hears of its own."""
    world = EncodingWorld()
    program = world.program(1)
    world.ask(program, 1)
    (dispatch,) = world.harness.dispatched
    assert isinstance(dispatch, Dispatch)
    actions = world.controller.handle(
        BatchEncoded(
            time_s=1.0,
            engine=world.instances[0],
            result=EncodeResult(number=1, rows=np.zeros((1, 8), np.float32)),
        )
    )
    (deliver,) = [one for one in actions if isinstance(one, Deliver)]
    assert not deliver.done_before
    assert deliver.last


def test_a_tenant_that_was_away_has_no_credit() -> None:
    world = EncodingWorld(max_batch_tokens=8)
    busy, away = world.program(1, "a"), world.program(2, "b")
    world.ask(busy, *[1] * 400)
    world.harness.run_until_idle()
    world.ask(busy, *[1] * 400)
    world.ask(away, *[1] * 400)
    for _ in range(22):
        world.harness.step()
    tokens = {row.program: row.num_encoded_tokens for row in world.controller.processes()}
    assert tokens[busy] - 400 >= 80
    assert tokens[away] >= 70


def test_what_has_failed_is_not_sent_any_more() -> None:
    world = EncodingWorld(max_batch_tokens=1)
    outcome = world.ask(world.program(1), 1, 1, 1, 1)
    error = EngineLost("no memory").record()
    result = EncodeResult(number=1, rows=np.empty((0, 0), np.float32), error=error)
    world.harness.shell._engines[world.instances[0]].messages.popleft()
    world.harness.post(BatchEncoded(time_s=0.0, engine=world.instances[0], result=result))
    assert outcome.status == "pending", "its second batch is on its way"
    world.harness.run_until_idle()
    assert outcome.error == error
    assert len(world.batches()) == 2


class DeepFirst:
    """The deepest goes first, and who was served has the last place of its depth."""

    @property
    def name(self) -> str:
        return "deep_first"

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (0.0, -float(command.depth), float(command.service_tokens))

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None: ...

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None: ...

    def on_ended(self, command: ReadyCommand, now_s: float) -> None: ...

    def on_program_ended(self, program: ProgramId, now_s: float) -> None: ...

    def on_capacity(self, num_sequences: int) -> None: ...

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()


def test_a_policy_sees_the_depth_and_what_a_request_was_served() -> None:
    world = EncodingWorld(policy=DeepFirst(), max_batch_tokens=2)
    program = world.program(1)
    world.ask(program, 2, 2)  # until all have come
    shallow = world.ask(program, 2, depth=1, token=1)
    long = world.ask(program, 2, 2, 2, depth=2, token=2)
    short = world.ask(program, 2, depth=2, token=3)
    order: list[int] = []
    world.harness.run_until_idle()
    for dispatch in world.harness.dispatched[2:]:
        assert isinstance(dispatch.batch, EncodeBatch)
        order += dispatch.batch.tokens[:1].tolist()
    # two are on their way before the first of them counts as service
    assert order == [2, 2, 3, 2, 1]
    assert [one.status for one in (shallow, long, short)] == ["done"] * 3
