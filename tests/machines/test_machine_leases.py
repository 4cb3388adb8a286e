"""Two nodes that lease memory to one another, in any order and with any loss: what ends as done is
exact, no block is lost, and nothing is written late into one that is used again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from machines_replay import RecordedControl

sys.path.insert(0, str(Path(__file__).parent.parent / "control"))

from control_world import ENGINE, alone
from leases_world import SIZE, LeaseWorld, settle

from quire.control import Controller
from quire.core.calls import Cancel
from quire.core.commands import Command
from quire.core.decoding import StopSpec
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId
from quire.core.lease_commands import Leased
from quire.core.scheduler_config import SchedulerConfig
from quire.testing.fake_engine.network import FakeNetwork
from quire.testing.harness import CommandOutcome

NUM_TOKENS = 4
TOLERATED = frozenset({
    "engine_lost", "invalid_argument", "page_lost", "pool_exhausted", "program_cancelled",
    "queue_poisoned", "unknown_handle",
})  # fmt: skip

NODES = st.integers(0, 1)
PROMPTS = st.integers(0, 3)
TTLS = st.sampled_from([5.0, 500.0, 900.0])
SELDOM = st.integers(0, 4)
"""0 is the chance that a disturbance happens."""


def prompt_of(number: int) -> list[int]:
    """Prompts share their first page, and two of them the second one too."""
    return [9, 8, 7, 6, number // 2, 5, 4, 3, number, 2, 1]


@cache
def told(number: int) -> list[int]:
    return alone(prompt_of(number), NUM_TOKENS, page_size=SIZE)


@dataclass(slots=True, eq=False)
class Opened:
    """A lease on ``node`` for the first ``end`` tokens of prompt ``number``."""

    node: int
    number: int
    end: int
    outcome: CommandOutcome

    @property
    def lease(self) -> Leased | None:
        done = self.outcome.status == "done"
        return self.outcome.replies[0] if done else None  # type: ignore[return-value]


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.network = FakeNetwork(seed=1)
        self.controls = [RecordedControl(lambda: Controller(SchedulerConfig())) for _ in range(2)]
        self.nodes = [
            LeaseWorld(self.network, num_blocks=18, num_host_blocks=6, control=control)
            for control in self.controls
        ]
        self.opened: list[Opened] = []
        self.answers: list[tuple[CommandOutcome, int]] = []
        self.num_programs = 1

    def issue(self, node: int, *commands: Command) -> list[CommandOutcome]:
        """Issue commands of a new program."""
        self.num_programs += 1
        world = self.nodes[node]
        world.program(self.num_programs)
        return world.issue(self.num_programs, *commands)

    def pages(self) -> list[int]:
        return list(range(5))

    @rule(
        node=NODES,
        number=PROMPTS,
        end=st.integers(0, 11),
        ttl_s=TTLS,
    )
    def open(self, node: int, number: int, end: int, ttl_s: float) -> None:
        command = self.nodes[node].open(prompt_of(number)[:end], ttl_s)
        self.opened.append(Opened(node, number, end, self.issue(node, command)[0]))

    def chosen(self, index: int) -> tuple[Opened, Leased] | None:
        """One of those that were opened lately."""
        ready = [(one, one.lease) for one in self.opened if one.lease is not None][-3:]
        if not ready:
            return None
        one, lease = ready[index % len(ready)]
        assert lease is not None
        return one, lease

    @rule(index=st.integers(0, 9), cut=st.integers(0, 11), whole=st.booleans())
    def send(self, index: int, cut: int, whole: bool) -> None:
        """All that a lease waits for, or a part of it; the pages are computed first."""
        found = self.chosen(index)
        if found is None or found[0].end <= found[1].num_matched:
            return
        one, lease = found
        world, tokens = self.nodes[1 - one.node], prompt_of(one.number)[: one.end]
        stop = one.end if whole else min(max(cut, lease.num_matched + 1), one.end)
        pages = self.pages()[: -(-one.end // SIZE)]
        self.issue(
            1 - one.node,
            world.alloc(pages),
            world.decode(pages, tokens, stop=StopSpec(max_tokens=0)),
            world.send(pages, lease.num_matched, stop, lease),
        )

    @rule(index=st.integers(0, 9), num_tokens=st.integers(0, 10))
    def take(self, index: int, num_tokens: int) -> None:
        found = self.chosen(index)
        if found is None:
            return
        one, lease = found
        world, tokens, pages = self.nodes[one.node], prompt_of(one.number), self.pages()
        count = min(num_tokens, one.end, len(tokens) - 1)
        mapped = -(-count // SIZE)
        outcome = self.issue(
            one.node,
            world.take(lease.lease, pages[:mapped], count),
            world.alloc(pages[mapped:]),
            world.decode(pages, tokens[count:], NUM_TOKENS, position=count),
        )[2]
        self.answers.append((outcome, one.number))

    @rule(node=NODES, number=PROMPTS)
    def generate(self, node: int, number: int) -> None:
        """A call that knows nothing of leases."""
        world = self.nodes[node]
        decode = world.decode(self.pages(), prompt_of(number), NUM_TOKENS)
        self.answers.append((self.issue(node, world.alloc(self.pages()), decode)[1], number))

    @rule(index=st.integers(0, 9), ttl_s=st.sampled_from([1.0, 40.0]), ends=st.booleans())
    def change(self, index: int, ttl_s: float, ends: bool) -> None:
        found = self.chosen(index)
        if found is not None:
            world, name = self.nodes[found[0].node], found[1].lease
            self.issue(found[0].node, world.close(name) if ends else world.renew(name, ttl_s))

    @rule(node=NODES, num_steps=st.integers(1, 4))
    def step(self, node: int, num_steps: int) -> None:
        for _ in range(num_steps):
            self.nodes[node].harness.step_engine(ENGINE)

    @rule(node=NODES)
    def go_on_with_transfers(self, node: int) -> None:
        self.nodes[node].harness.step_transfers(ENGINE)

    @rule(node=NODES, seconds=st.sampled_from([1.0, 10.0]))
    def wait(self, node: int, seconds: float) -> None:
        self.nodes[node].harness.clock.advance(seconds)
        self.nodes[node].tick()

    @rule(chance=SELDOM)
    def cut_or_mend_the_network(self, chance: int) -> None:
        self.network.is_cut = chance == 0

    @rule()
    def settle(self) -> None:
        """All that can be done without time is."""
        for _ in range(3):
            for world in self.nodes:
                while world.harness.step_engine(ENGINE) or world.harness.step_transfers(ENGINE):
                    pass

    @rule(node=NODES, chance=SELDOM)
    def lose(self, node: int, chance: int) -> None:
        if chance:
            return
        self.nodes[node].harness.lose_engine(ENGINE)
        self.nodes[node].restart()

    @rule(node=NODES, index=st.integers(0, 20), chance=SELDOM)
    def cancel(self, node: int, index: int, chance: int) -> None:
        if chance:
            return
        outcomes = self.nodes[node].harness.outcomes
        pending = [(p, c) for (p, c), one in outcomes.items() if one.status == "pending"]
        if pending:
            program, command = pending[index % len(pending)]
            self.nodes[node].harness.call(program, Cancel(command))

    @rule(node=NODES, back=st.integers(0, 5), chance=SELDOM)
    def end(self, node: int, back: int, chance: int) -> None:
        if chance:
            return
        program = ProgramId(max(self.num_programs - back, 2))
        self.nodes[node].harness.post(
            ProgramEnded(time_s=self.nodes[node].harness.now_s, program=program)
        )

    def teardown(self) -> None:
        self.network.is_cut = False
        settle(*self.nodes)
        for outcome, number in self.answers:
            if outcome.status == "done":
                assert outcome.tokens == told(number)
        for world in self.nodes:
            for outcome in world.harness.outcomes.values():
                assert outcome.error is None or outcome.error.code in TOLERATED, outcome
                assert outcome.status != "pending", outcome
            for program in range(1, self.num_programs + 1):
                world.harness.post(
                    ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program))
                )
            world.harness.clock.advance(1000.0)
            world.tick()
            settle(*self.nodes)
            assert (world.statistics.num_leases, world.pool.num_held) == (0, 0)
        for control in self.controls:
            control.assert_replays()


TestLeases = LeaseMachine.TestCase
