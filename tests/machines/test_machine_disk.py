"""Programs that hold more than device and host have, with a disk below them that may fail."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, rule
from machines_programs import WorldMachine
from machines_world import TrackedQueue, World

from quire.core import commands as c
from quire.core.decoding import SamplerSpec, StopSpec

PAGE_SIZE = 2
NUM_BLOCKS = 8
FILL = 12
"""Tokens that a program holds after its first call: six of the eight blocks."""

picks = st.integers(0, 1 << 16)
OPAQUE_AT = 5
"""Who begins at another position than 0 holds pages that cannot be computed again."""


class TiersMachine(WorldMachine):
    """Each program holds a text and goes on behind it now and then; between two calls most of them
    are on the host and the disk, in every order of messages and transfers."""

    num_disk_blocks = 200
    tolerated: frozenset[str] = frozenset()

    @initialize(num_host_blocks=st.sampled_from([0, 4, 10]), seed=st.sampled_from([None, 0, 1]))
    def start(self, num_host_blocks: int, seed: int | None) -> None:
        self.world = World(
            page_size=PAGE_SIZE,
            num_blocks=NUM_BLOCKS,
            num_host_blocks=num_host_blocks,
            num_disk_blocks=self.num_disk_blocks,
            transfer_seed=seed,
        )
        self.world.tolerated = self.tolerated
        for number in range(3):
            self.begin(number, is_opaque=number == 1)

    @rule(pick=picks, is_opaque=st.booleans())
    def begin(self, pick: int, is_opaque: bool) -> None:
        """A new program; at most six live."""
        if sum(actor.alive for actor in self.world.actors) < 6:
            queue = self.world.start_program(("red", "blue")[pick % 2]).queues[0]
            self.say(queue, FILL // 2 + pick % 4, OPAQUE_AT if is_opaque else 0, FILL)

    @rule(pick=picks, num_tokens=st.integers(1, 3))
    def go_on(self, pick: int, num_tokens: int) -> None:
        queues = [queue for queue in self.world.queues() if not queue.is_unknown and queue.pages]
        if queues:
            queue = queues[pick % len(queues)]
            if sum(queue.fill(page) for page in queue.pages) + num_tokens + 2 <= 2 * NUM_BLOCKS - 2:
                self.say(queue, num_tokens, queue.next_position(queue.pages), num_tokens + 2)

    def say(self, queue: TrackedQueue, num_tokens: int, position: int, num_slots: int) -> None:
        world, context = self.world, list(queue.pages)
        output = [page for page in queue.pages if queue.fill(page) < PAGE_SIZE]
        output += world.alloc_pages(queue, -(-num_slots // PAGE_SIZE))
        tokens = [queue.actor.program + position + index for index in range(num_tokens)]
        world.issue(
            queue,
            c.Decode(
                id=world.command_id(queue),
                context=context,
                output=output,
                tokens=tokens,
                position=position,
                sampler=SamplerSpec(),
                stop=StopSpec(max_tokens=num_slots - num_tokens),
            ),
        )

    @rule(pick=picks)
    def end(self, pick: int) -> None:
        alive = [actor for actor in self.world.actors if actor.alive]
        if len(alive) > 3:
            self.world.end_program(alive[pick % len(alive)])


class BrokenDiskMachine(TiersMachine):
    """Now and then writes and reads fail: what can be computed again is."""

    tolerated = frozenset({"pool_exhausted", "queue_poisoned", "page_lost"})

    @rule(share=st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    def break_disk(self, share: float) -> None:
        self.world.broken_share = share

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        """A disk that has failed is tried again after a while."""
        self.world.harness.clock.advance(seconds)


TestTiers = TiersMachine.TestCase
TestBrokenDisk = BrokenDiskMachine.TestCase
TestTiers.settings = TestBrokenDisk.settings = settings(
    max_examples=max(10, settings().max_examples // 2)
)
