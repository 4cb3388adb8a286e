"""The base of the state machines: workload, programs, decodes, time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from machines_world import TrackedQueue, World

from benchmarks.pie.dispatch_policies import Eager, KOnly, TOnly
from quire.core import commands as c
from quire.core.decoding import GrammarSpec, Processor, SamplerSpec, StopSpec
from quire.core.ids import PageId
from quire.core.policy import DispatchPolicy
from quire.core.scheduler_config import PausingConfig, PriorityScope, SchedulerConfig

TEXTS = [list(text.encode()) for text in ("abcdefgh", "abcdefgz", "abcd", "xyxyxyxyxy", "q")]
"""Prompts that share prefixes, so that the prefix index finds some of them."""

GRAMMAR = GrammarSpec("regex", "[a-f]{2}(x|yy|[0-9]{3})[a-z]{4}")

SLOTS = {1: 26, 2: 28, 16: 96}
"""Slots of the pool per page size: a few commands fill it."""

PAUSING = (
    PausingConfig(),
    PausingConfig(above=0.05, resume_below=0.04, max_s=0.05, max_hold_s=0.02),
    PausingConfig(above=0.2, resume_below=0.1, max_s=1000.0),
    PausingConfig(above=0.0),
)
"""Little of memory, and a long or a short time, so that programs are paused and go on."""

seeds = st.integers(0, 3)
picks = st.integers(0, 1_000_000)
texts = st.sampled_from(TEXTS)
samplers = st.one_of(
    st.just(SamplerSpec()),
    st.builds(
        lambda seed: SamplerSpec(
            (Processor("temperature", {"temperature": 4.0}),), greedy=False, seed=seed
        ),
        seeds,
    ),
    st.just(SamplerSpec((Processor("frequency_penalty", {"penalty": 9.0}),))),
)
stops = st.builds(
    StopSpec,
    max_tokens=st.sampled_from([0, 1, 5, 11, 20]),
    min_tokens=st.sampled_from([0, 0, 3]),
    token_ids=st.sampled_from([(), tuple(range(0, 256, 9))]),
    strings=st.sampled_from([(), tuple(bytes([b]) for b in range(1, 256, 17))]),
)


class WorldMachine(RuleBasedStateMachine):
    """What all machines over a ``world`` do besides what they ask of it: time goes on, and every
    reply is checked."""

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.world.harness.step()

    @rule()
    def step_transfers(self) -> None:
        for engine in list(self.world.harness.engines):
            self.world.harness.step_transfers(engine)

    @rule()
    def run(self) -> None:
        self.world.harness.run_until_idle(4000)
        assert not self.world.harness.pending(), self.world.harness.pending()[:3]

    @invariant()
    def replies_are_exact(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        # Runs behind a failure too, which it must not hide.
        if hasattr(self, "world") and sys.exc_info()[0] is None:
            self.world.finish()


class ProgramsMachine(WorldMachine):
    """Decodes of programs of two tenants on one engine whose pool is too small for them."""

    num_host_blocks = 400
    num_engines = 1
    tolerated: frozenset[str] = frozenset()

    @initialize(
        page_size=st.sampled_from([1, 2, 16]),
        policy=st.sampled_from(["fcfs", "round_robin", "topology", "invocation"]),
        dispatch=st.sampled_from([None, None, Eager(), KOnly(8), TOnly(0.005)]),
        run_ahead=st.booleans(),
        max_batch_tokens=st.sampled_from([12, 64]),
        max_steps=st.sampled_from([1, 4, 32]),
        transfer_seed=st.sampled_from([None, 0, 1, 2]),
        max_sequences=st.sampled_from([1, 2, 6]),
        output_share=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        priority_scope=st.sampled_from(["tenant", "node"]),
        pausing=st.sampled_from(PAUSING),
    )
    def start(
        self,
        page_size: int,
        policy: str,
        dispatch: DispatchPolicy | None,
        run_ahead: bool,
        max_batch_tokens: int,
        max_steps: int,
        transfer_seed: int | None,
        max_sequences: int,
        output_share: float,
        priority_scope: PriorityScope,
        pausing: PausingConfig,
    ) -> None:
        self.page_size = page_size
        self.num_blocks = SLOTS[page_size] // page_size
        self.world = World(
            page_size=page_size,
            num_blocks=self.num_blocks,
            num_host_blocks=self.num_host_blocks,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            config=SchedulerConfig(
                policy=policy,
                run_ahead=run_ahead,
                max_steps_per_message=max_steps,
                output_share=output_share,
                priority_scope=priority_scope,
                pausing=pausing,
            ),
            transfer_seed=transfer_seed,
            dispatch=dispatch,
            num_engines=self.num_engines,
        )
        self.world.tolerated = self.tolerated
        for tenant in ("red", "blue", "red"):
            self.world.start_program(tenant)

    # -- choosing ----------------------------------------------------------------------------------

    def queue(self, pick: int) -> TrackedQueue:
        """A queue that the test has not disturbed; a new one if there is none."""
        queues = self.world.queues()
        if queues:
            return queues[pick % len(queues)]
        alive = [actor for actor in self.world.actors if actor.alive]
        if pick % 2 or not alive:
            return self.world.start_program(("red", "blue")[pick // 2 % 2]).queues[0]
        return self.world.create_queue(alive[pick % len(alive)])

    def some_pages(self, pages: Sequence[PageId], pick: int, most: int = 4) -> list[PageId]:
        """A few of ``pages``, in an order that ``pick`` decides."""
        rest, chosen = list(pages), []
        most = min(most, self.num_blocks - 3)  # leaves room for what a command adds
        for _ in range(min(len(rest), pick % (most + 1))):
            pick = pick * 1103515245 + 12345
            chosen.append(rest.pop(pick // 65536 % len(rest)))
        return chosen

    def gapless(self, queue: TrackedQueue, pages: Sequence[PageId]) -> list[PageId]:
        """Of ``pages`` those that a decode can fill one behind the other."""
        output = [p for p in pages if p not in queue.sealed and queue.fill(p) < self.page_size]
        return output[:1] + [page for page in output[1:] if not queue.fill(page)]

    def pages_for(self, num_tokens: int) -> int:
        return min(-(-num_tokens // self.page_size), self.num_blocks)

    # -- programs ----------------------------------------------------------------------------------

    @precondition(lambda self: sum(a.alive for a in self.world.actors) < 4)
    @rule(tenant=st.sampled_from(["red", "blue"]), priority=st.integers(0, 1))
    def start_program(self, tenant: str, priority: int) -> None:
        self.world.start_program(tenant, priority=priority)

    @rule(pick=picks)
    def end_program(self, pick: int) -> None:
        alive = [actor for actor in self.world.actors if actor.alive]
        if len(alive) > 1:
            self.world.end_program(alive[pick % len(alive)])

    @rule(pick=picks, priority=st.integers(0, 1))
    def create_queue(self, pick: int, priority: int) -> None:
        alive = [a for a in self.world.actors if a.alive and len(a.queues) < 4]
        if alive:
            self.world.create_queue(alive[pick % len(alive)], priority=priority)

    # -- decodes -----------------------------------------------------------------------------------

    @rule(
        pick=picks, text=texts, more=st.integers(0, 6), sampler=samplers, stop=stops,
        cache=st.booleans(), logprobs=st.sampled_from([None, None, 0, 2]),
        prompt_logprobs=st.sampled_from([None, None, None, 2]), grammar=st.booleans(),
        room=st.integers(0, 12),
    )  # fmt: skip
    def complete(
        self,
        pick: int,
        text: list[int],
        more: int,
        sampler: SamplerSpec,
        stop: StopSpec,
        cache: bool,
        logprobs: int | None,
        prompt_logprobs: int | None,
        grammar: bool,
        room: int,
    ) -> None:
        """A plain completion over new pages."""
        queue = self.queue(pick)
        tokens = text + text[:more]
        pages = self.world.alloc_pages(queue, self.pages_for(len(tokens) + room))
        self.decode(
            queue, [], pages, tokens, 0, sampler, stop, cache=cache, num_logprobs=logprobs,
            num_prompt_logprobs=prompt_logprobs, grammar=GRAMMAR if grammar else None,
        )  # fmt: skip

    @rule(pick=picks, text=texts, room=st.integers(4, 14), stop=stops)
    def crowd(self, pick: int, text: list[int], room: int, stop: StopSpec) -> None:
        """Several completions at once: more than the pool holds."""
        for index in range(4):
            tokens = text[: 2 + (pick + index) % 5]
            sampler = SamplerSpec((), greedy=False, seed=index)
            self.complete_on(self.queue(pick + index), tokens, room, sampler, stop)

    def complete_on(
        self,
        queue: TrackedQueue,
        tokens: list[int],
        room: int,
        sampler: SamplerSpec,
        stop: StopSpec,
    ) -> None:
        pages = self.world.alloc_pages(queue, self.pages_for(len(tokens) + room))
        self.decode(queue, [], pages, tokens, 0, sampler, stop)

    @rule(pick=picks, text=texts, sampler=samplers, stop=stops, new_pages=st.integers(0, 3))
    def go_on(
        self, pick: int, text: list[int], sampler: SamplerSpec, stop: StopSpec, new_pages: int
    ) -> None:
        """Another decode behind pages that are there, in any order."""
        queue = self.queue(pick)
        context = self.some_pages(queue.pages, pick, 6)
        output = self.gapless(queue, context)
        output += self.world.alloc_pages(queue, min(new_pages, self.num_blocks - len(context)))
        if queue.reference.room(output) < len(text):
            return
        position = queue.next_position(context)
        self.decode(queue, context, output, text, position, sampler, stop)

    def decode(
        self,
        queue: TrackedQueue,
        context: list[PageId],
        output: list[PageId],
        tokens: list[int],
        position: int,
        sampler: SamplerSpec,
        stop: StopSpec,
        **options: Any,
    ) -> None:
        if queue.reference.room(output) < len(tokens):
            return
        self.world.issue(
            queue,
            c.Decode(
                id=self.world.command_id(queue),
                context=context,
                output=output,
                tokens=tokens,
                position=position,
                sampler=sampler,
                stop=stop,
                **options,
            ),
        )
