"""Whatever happens to requests and instances of an encoder, each request ends once, with its rows,
nobody waits for ever, and tenants keep their shares."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from encoding_world import EncodingWorld, rows_of
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from quire.core.events import ProgramEnded
from quire.core.ids import EngineId, ProgramId, TenantId
from quire.testing.harness import CommandOutcome

NUM_INSTANCES = 3
MAX_BATCH_TOKENS = 12
LENGTHS = st.lists(st.integers(1, 16), min_size=1, max_size=12)


class Encoding(RuleBasedStateMachine):
    """The harness checks control's invariants behind each event, and that a request ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.world = EncodingWorld(
            NUM_INSTANCES, max_batch_tokens=MAX_BATCH_TOKENS, token_s=0.001, max_pending=60
        )
        self.num_programs = 0
        self.programs: dict[ProgramId, str] = {}
        self.asked: list[tuple[ProgramId, int, CommandOutcome]] = []
        self.num_losses = 0

    @rule(tenant=st.sampled_from("abc"), priority=st.integers(-1, 1))
    def start(self, tenant: str, priority: int) -> None:
        self.num_programs += 1
        program = self.world.program(self.num_programs, tenant, priority)
        self.programs[program] = tenant

    @precondition(lambda self: self.programs)
    @rule(data=st.data(), lengths=LENGTHS, priority=st.integers(-1, 1))
    def ask(self, data: st.DataObject, lengths: list[int], priority: int) -> None:
        program = data.draw(st.sampled_from(sorted(self.programs)))
        token = len(self.asked) % 8
        outcome = self.world.ask(program, *lengths, priority=priority, token=token)
        self.asked.append((program, token, outcome))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        program, _, outcome = data.draw(st.sampled_from(self.asked))
        if outcome.status == "pending" and program in self.programs:
            self.world.cancel(program, outcome)

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        program = data.draw(st.sampled_from(sorted(self.programs)))
        del self.programs[program]
        self.world.harness.post(ProgramEnded(time_s=self.world.harness.now_s, program=program))
        assert all(one.status != "pending" for owner, _, one in self.asked if owner == program)

    @rule(index=st.integers(0, NUM_INSTANCES - 1))
    def step(self, index: int) -> None:
        instance = self.world.instances[index]
        if instance in self.world.harness.encoders:
            self.world.harness.step_engine(instance)

    @rule(index=st.integers(0, NUM_INSTANCES - 1))
    def lose_or_bring_back(self, index: int) -> None:
        instance = self.world.instances[index]
        if instance in self.world.harness.encoders:
            self.num_losses += 1
            self.world.harness.lose_engine(instance)
        else:
            self.world.up(instance)

    def teardown(self) -> None:
        for instance in self.world.instances:
            if instance not in self.world.harness.encoders:
                self.world.up(instance)
        self.world.harness.run_until_idle()
        for _, token, outcome in self.asked:
            assert outcome.status != "pending", "a request has been forgotten"
            if outcome.status == "done":
                self._check_rows(outcome, token)
            elif outcome.status == "failed":
                assert outcome.error is not None
                is_lost = "lost twice" in outcome.error.message
                assert is_lost <= (self.num_losses > 1)
                assert is_lost or outcome.error.code == "quota_exceeded"
        (encoder,) = self.world.controller.statistics().encoders
        assert (encoder.num_waiting, encoder.num_pending_sequences) == (0, 0)
        assert all(not row.num_pending_commands for row in self.world.controller.processes())

    def _check_rows(self, outcome: CommandOutcome, token: int) -> None:
        lengths = np.asarray(outcome.command.lengths)  # type: ignore[union-attr]
        rows = rows_of(outcome)
        assert rows[:, token].tolist() == lengths.tolist()
        assert rows.sum() == lengths.sum()


TestEncoding = Encoding.TestCase
TestEncoding.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    own=st.lists(st.integers(1, 16), min_size=30, max_size=60),
    other=st.lists(st.integers(1, 16), min_size=30, max_size=60),
    weight=st.sampled_from([1.0, 2.0, 4.0]),
)
@settings(max_examples=60, deadline=None)
def test_as_long_as_both_wait_two_tenants_are_level(
    own: list[int], other: list[int], weight: float
) -> None:
    """Within one sequence of each, as far as has been sent."""
    world = EncodingWorld(2, max_batch_tokens=MAX_BATCH_TOKENS, weights={"a": weight, "b": 1.0})
    world.ask(world.program(99, "c"), 1, 1)  # until both have come, all instances are busy
    world.ask(world.program(98, "c"), 1, 1)
    world.ask(world.program(1, "a"), *own, token=1)
    world.ask(world.program(2, "b"), *other, token=2)
    sent = {1: 0, 2: 0}
    num_looked = 0
    while True:
        for dispatch in world.harness.dispatched[num_looked:]:
            tokens = np.asarray(dispatch.batch.tokens)  # type: ignore[union-attr]
            for token in sent:
                sent[token] += int((tokens == token).sum())
        num_looked = len(world.harness.dispatched)
        if sent[1] == sum(own) or sent[2] == sum(other) or not world.harness.step():
            break
        assert abs(sent[1] / weight - sent[2]) <= 16 + 16
    assert sent[1] == sum(own) or sent[2] == sum(other)


def test_the_least_of_many_tenants_is_not_starved() -> None:
    world = EncodingWorld(1, max_batch_tokens=MAX_BATCH_TOKENS)
    for number in range(1, 10):
        world.ask(world.program(number, f"t{number}"), *[6] * 40)
    outcome = world.ask(world.program(10, "least", priority=-9), 12)
    num_steps = 0
    while outcome.status == "pending":
        assert world.harness.step()
        num_steps += 1
    assert num_steps <= 2 + 9 + 1, "each of the others has had a turn"
    assert TenantId("least") in {row.tenant for row in world.controller.processes()}
    assert EngineId("embedder#0") in world.harness.encoders
