"""A node that sends pages wherever they are, while others push them out and bring them back: what
arrives has the bytes that were computed, and no block is lost, nor used again too early."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from machines_replay import RecordedControl
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "control"))

from control_world import ENGINE, World
from leases_world import SIZE, LeaseWorld, settle

from quire.control import Controller
from quire.core import commands as c
from quire.core.batch import OpenReceive
from quire.core.calls import Cancel
from quire.core.decoding import StopSpec
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId
from quire.core.lease_commands import Leased
from quire.core.scheduler_config import SchedulerConfig
from quire.testing.fake_engine.network import FakeNetwork
from quire.testing.harness import CommandOutcome

NUM_SLOTS = 10
"""Of each holder: two full pages and two tokens more."""
NUM_PAGES = -(-NUM_SLOTS // SIZE)
TOLERATED = frozenset({
    "engine_lost", "invalid_argument", "page_lost", "pool_exhausted", "program_cancelled",
    "queue_poisoned", "unknown_handle",
})  # fmt: skip
SELDOM = st.integers(0, 5)
"""0 is the chance that a disturbance happens."""
PAGES = list(range(NUM_PAGES))
WRITING, SENDING = 1, 2
"""Queues of a holder."""


def compute(world: World, *, is_opaque: bool, number: int) -> list[c.Command]:
    """The commands that write pages ``PAGES``: of text, or of tokens with gaps between them."""
    tokens = [9, 8, 7, 6, number, 5, 4, 3, 2, 1]
    if not is_opaque:
        return [world.alloc(PAGES), world.decode(PAGES, tokens, stop=StopSpec(max_tokens=0))]
    embeds = range(NUM_SLOTS)
    embed = c.EmbedText(
        id=world.id(),
        tokens=tokens,
        embeds=list(embeds),
        positions=[3 + 2 * index for index in embeds],
    )
    commands = [world.alloc(PAGES), world.alloc_embeds(embeds), embed]
    return [*commands, world.forward([], embeds, PAGES)]


@cache
def computed(is_opaque: bool, number: int) -> tuple[NDArray[np.uint64], list[int]]:
    """K and V and positions of these pages, from an engine that does nothing else."""
    world = World(page_size=SIZE)
    world.program()
    outcomes = world.do(1, *compute(world, is_opaque=is_opaque, number=number))
    assert all(one.status == "done" for one in outcomes)
    (forward,) = [
        one.batch.forward for one in world.harness.dispatched if one.batch.forward is not None
    ]
    slots = forward.slots[0]
    return (
        world.engine.memory.slots.values[:, slots],
        world.engine.memory.slots.positions[slots].tolist(),
    )


@dataclass(slots=True, eq=False)
class Holder:
    """A program that holds pages; their fill may grow, but what it computed first stays."""

    program: int
    is_opaque: bool
    number: int
    written: CommandOutcome
    num_more: int = 0


@dataclass(slots=True, eq=False)
class Sending:
    """A send of all first slots of ``holder`` to ``lease``."""

    holder: Holder
    lease: Leased
    outcome: CommandOutcome
    is_checked: bool = field(default=False)


class SendsFromHost(RuleBasedStateMachine):
    @initialize(num_disk_blocks=st.sampled_from([0, 6]), seed=st.integers(0, 3))
    def start(self, num_disk_blocks: int, seed: int) -> None:
        network = FakeNetwork(seed=seed)
        self.controls = [RecordedControl(lambda: Controller(SchedulerConfig())) for _ in range(2)]
        self.sender = LeaseWorld(
            network,
            control=self.controls[0],
            transfer_seed=seed,
            num_blocks=12,
            num_host_blocks=7,
            num_disk_blocks=num_disk_blocks,
        )
        self.receiver = LeaseWorld(
            network, control=self.controls[1], num_blocks=80, num_host_blocks=0
        )
        self.network = network
        self.num_programs = 1
        self.holders: list[Holder] = []
        self.sendings: list[Sending] = []

    def new_program(self) -> int:
        self.num_programs += 1
        self.sender.program(self.num_programs, queues=2)
        return self.num_programs

    def slow(self, is_slow: bool) -> None:
        exchange = self.sender.engine.exchange
        assert exchange is not None
        exchange.is_slow = is_slow

    # -- holders -----------------------------------------------------------------------------------

    @rule(is_opaque=st.booleans(), number=st.integers(0, 3), waits=st.booleans())
    def hold(self, is_opaque: bool, number: int, waits: bool) -> None:
        program = self.new_program()
        commands = compute(self.sender, is_opaque=is_opaque, number=number)
        written = self.sender.issue(program, *commands)[-1]
        self.holders.append(Holder(program, is_opaque, number, written))
        if not waits:
            self.run_sender()

    def holder(self, index: int) -> Holder | None:
        ready = [one for one in self.holders if one.written.status == "done"]
        return ready[index % len(ready)] if ready else None

    @rule(number=st.integers(0, 9), num_tokens=st.integers(24, 42), waits=st.booleans())
    def crowd(self, number: int, num_tokens: int, waits: bool) -> None:
        """Another program wants the device; it ends, or what it does goes on later."""
        program = self.new_program()
        pages = range(-(-(num_tokens + 5) // SIZE))
        tokens = [100 + number, 4, 3, 2, 1]
        decode = self.sender.decode(pages, tokens, num_tokens)
        self.sender.issue(program, self.sender.alloc(pages), decode)
        if not waits:
            self.run_sender()
            self.end_program(program)

    def run_sender(self) -> None:
        harness = self.sender.harness
        while harness.step_engine(ENGINE) or harness.step_transfers(ENGINE):
            pass

    @rule(index=st.integers(0, 9), num_tokens=st.integers(1, 3))
    def write(self, index: int, num_tokens: int) -> None:
        """Behind what is there, in the last page: it must be on the device."""
        holder = self.holder(index)
        if holder is None:
            return
        position = 40 if holder.is_opaque else NUM_SLOTS + holder.num_more
        page = 50 + holder.num_more
        holder.num_more += num_tokens
        decode = self.sender.decode(
            [PAGES[-1], page],
            [6] * num_tokens,
            position=position,
            context=[*PAGES, page],
            stop=StopSpec(max_tokens=0),
        )
        self.sender.issue(holder.program, self.sender.alloc([page]), decode)

    @rule(index=st.integers(0, 9), page=st.sampled_from(PAGES))
    def drop(self, index: int, page: int) -> None:
        """Give one page up; what is sent of it goes on."""
        holder = self.holder(index)
        if holder is not None:
            self.sender.issue(holder.program, self.sender.dealloc([page]))
            self.holders.remove(holder)

    # -- sends -------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 9), ttl_s=st.sampled_from([20.0, 900.0]), parts=st.booleans())
    def send(self, index: int, ttl_s: float, parts: bool) -> None:
        holder = self.holder(index)
        if holder is None:
            return
        fills = [SIZE] * (NUM_SLOTS // SIZE) + [NUM_SLOTS % SIZE]
        self.num_programs += 1
        self.receiver.program(self.num_programs)
        opening = self.receiver.open([], ttl_s, opaque=fills)
        (opened,) = self.receiver.issue(self.num_programs, opening)
        while self.receiver.harness.step_engine(ENGINE):
            pass
        if opened.status != "done":
            return
        lease = opened.reply
        assert isinstance(lease, Leased)
        cut = SIZE + 1 if parts else NUM_SLOTS
        sends = [self.sender.send(PAGES, 0, cut, lease)]
        if parts:
            sends.append(self.sender.send(PAGES, cut, NUM_SLOTS, lease))
        outcome = self.sender.issue(holder.program, *sends, queue=SENDING)[-1]
        self.sendings.append(Sending(holder, lease, outcome))

    @rule(number=st.integers(0, 9), index=st.integers(0, 9), parts=st.booleans())
    def send_what_is_pushed_out(self, number: int, index: int, parts: bool) -> None:
        """Else it would be seldom."""
        if self.holder(index) is None:
            self.hold(is_opaque=bool(index % 2), number=number % 4, waits=False)
        self.crowd(number, 42, waits=False)
        self.slow(is_slow=True)
        self.send(index, 900.0, parts)

    @rule(is_slow=st.booleans())
    def delay(self, is_slow: bool) -> None:
        self.slow(is_slow)

    @rule(chance=SELDOM)
    def cut_or_mend_the_network(self, chance: int) -> None:
        self.network.is_cut = chance == 0

    # -- time and ends -----------------------------------------------------------------------------

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.sender.harness.step_engine(ENGINE)

    @rule()
    def go_on_with_transfers(self) -> None:
        self.sender.harness.step_transfers(ENGINE)

    @rule()
    def settle(self) -> None:
        for world in (self.sender, self.receiver) * 3:
            while world.harness.step_engine(ENGINE) or world.harness.step_transfers(ENGINE):
                pass

    @rule(seconds=st.sampled_from([1.0, 15.0]))
    def wait(self, seconds: float) -> None:
        for world in self.sender, self.receiver:
            world.harness.clock.advance(seconds)
            world.tick()

    @rule(index=st.integers(0, 20), chance=SELDOM)
    def cancel(self, index: int, chance: int) -> None:
        pending = [one.outcome for one in self.sendings if one.outcome.status == "pending"]
        if chance or not pending:
            return
        outcome = pending[index % len(pending)]
        (program,) = [one.holder.program for one in self.sendings if one.outcome is outcome]
        self.sender.harness.call(ProgramId(program), Cancel(outcome.command.id))

    @rule(back=st.integers(0, 6))
    def end(self, back: int) -> None:
        self.end_program(max(self.num_programs - back, 2))

    def end_program(self, program: int) -> None:
        self.holders = [one for one in self.holders if one.program != program]
        self.sender.harness.post(
            ProgramEnded(time_s=self.sender.harness.now_s, program=ProgramId(program))
        )

    @rule(chance=SELDOM)
    def lose(self, chance: int) -> None:
        if chance:
            return
        self.sender.harness.lose_engine(ENGINE)
        self.sender.restart()
        self.holders = [one for one in self.holders if not one.is_opaque]

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def what_has_arrived_is_what_was_computed(self) -> None:
        received = {
            op.lease: op.slots for op in self.receiver.operations() if isinstance(op, OpenReceive)
        }
        memory = self.receiver.engine.memory
        for sending in self.sendings:
            if sending.is_checked or sending.outcome.status != "done":
                continue
            sending.is_checked = True
            values, positions = computed(sending.holder.is_opaque, sending.holder.number)
            slots = received[sending.lease.lease.number]
            assert memory.slots.positions[slots].tolist() == positions
            assert np.array_equal(memory.slots.values[:, slots], values)

    def teardown(self) -> None:
        if not hasattr(self, "sender"):
            return
        self.network.is_cut = False
        self.slow(is_slow=False)
        settle(self.sender, self.receiver)
        for world in self.sender, self.receiver:
            for outcome in world.harness.outcomes.values():
                assert outcome.error is None or outcome.error.code in TOLERATED, outcome
                assert outcome.status != "pending", outcome
            for program in range(1, self.num_programs + 1):
                world.harness.post(
                    ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program))
                )
            world.harness.clock.advance(1000.0)
            world.tick()
            settle(self.sender, self.receiver)
            pool = world.pool
            assert (world.statistics.num_leases, pool.num_held) == (0, 0)
            assert pool.num_host_free + pool.num_host_cached == pool.num_host_blocks
            assert pool.num_disk_free + pool.num_disk_cached == pool.num_disk_blocks
        for control in self.controls:
            control.assert_replays()


TestSendsFromHost = SendsFromHost.TestCase
