"""The world of the state machines: programs that issue random commands, and what must come back.

Every queue of a program is a ``TrackedQueue`` with its own pages and its own ``ReferenceProgram``,
which says what each command must answer. What a test does to a queue in flight (cancel, reset, a
lost engine) allows its commands to fail; whatever ends as done must still be exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from machines_replay import RecordedControl

from quire.control import Controller
from quire.core import commands as c
from quire.core.actions import ReplyValue
from quire.core.calls import Cancel, CloseQueue, CreateQueue, ResetQueue
from quire.core.config import TenantConfig
from quire.core.decoding import DecodeChunk, SamplerSpec, StopSpec, TokenLogprobs
from quire.core.events import ProgramEnded, ProgramStarted, Tick
from quire.core.ids import (
    CommandId,
    EmbedId,
    EngineId,
    ModelId,
    PageId,
    ProgramId,
    QueueId,
    TenantId,
    TokenSlotId,
)
from quire.core.policy import DispatchPolicy
from quire.core.scheduler_config import SchedulerConfig
from quire.testing import CommandOutcome, ControlHarness, FakeEngine, ReferenceProgram, fake_pool

ENGINE = EngineId("fake")
ENGINES = (ENGINE, EngineId("fake#1"), EngineId("fake#2"))
MAX_STEPS = 4000
EXPORT_TTL_S = 601.0
"""Past the time to live of exports that name none."""
"""More messages than any of these workloads needs: beyond it, nothing is making progress."""


@dataclass(slots=True)
class Expectation:
    """A command in flight and its reference reply."""

    outcome: CommandOutcome
    reply: ReplyValue


@dataclass(slots=True, eq=False)
class TrackedQueue:
    """One queue. ``may_fail``: the test has disturbed it; ``is_broken``: one of its commands has
    failed, so nothing behind it is known."""

    actor: Actor
    id: QueueId
    reference: ReferenceProgram
    pages: list[PageId] = field(default_factory=list)
    sealed: set[PageId] = field(default_factory=set)
    embeds: list[EmbedId] = field(default_factory=list)
    expected: list[Expectation] = field(default_factory=list)
    parents: list[TrackedQueue] = field(default_factory=list)
    last_command: CommandId | None = None
    may_fail: bool = False
    is_broken: bool = False
    is_open: bool = True

    @property
    def is_disturbed(self) -> bool:
        """A queue that waited for another one's command shares its fate."""
        return self.may_fail or any(parent.is_disturbed for parent in self.parents)

    @property
    def is_unknown(self) -> bool:
        """One of its commands has failed, or of a queue whose pages it goes on behind."""
        return self.is_broken or any(parent.is_unknown for parent in self.parents)

    @property
    def is_exact(self) -> bool:
        return self.is_open and not (self.is_disturbed or self.is_broken)

    @property
    def writable(self) -> list[PageId]:
        return [page for page in self.pages if page not in self.sealed]

    def fill(self, page: PageId) -> int:
        return len(self.reference.pages[page].slots)

    def next_position(self, pages: Sequence[PageId]) -> int:
        """One behind the highest position that ``pages`` hold, hidden or not."""
        seen = [slot.position for page in pages for slot in self.reference.pages[page].slots]
        return 1 + max(seen, default=-1)


@dataclass(slots=True, eq=False)
class Actor:
    """One program of the world."""

    program: ProgramId
    tenant: TenantId
    queues: list[TrackedQueue] = field(default_factory=list)
    ids: count[int] = field(default_factory=lambda: count(1))
    alive: bool = True


class World:
    """One node with one fake engine, and everything that the test has done to it."""

    def __init__(
        self,
        *,
        page_size: int = 2,
        num_blocks: int = 20,
        num_host_blocks: int = 400,
        num_disk_blocks: int = 0,
        max_batch_tokens: int = 64,
        max_sequences: int = 6,
        config: SchedulerConfig | None = None,
        transfer_seed: int | None = None,
        dispatch: DispatchPolicy | None = None,
        num_engines: int = 1,
    ) -> None:
        """``transfer_seed``: transfers end late, in any order; without one behind each message."""
        self.pool = fake_pool(
            page_size=page_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_disk_blocks=num_disk_blocks,
            num_embeds=512,
            num_token_slots=1024,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
        )
        tenants = tuple(TenantConfig(TenantId(name)) for name in ("red", "blue"))
        self.recorded = RecordedControl(
            lambda: Controller(config or SchedulerConfig(), tenants=tenants, dispatch=dispatch)
        )
        self.controller = self.recorded.controller
        self._transfer_seed = transfer_seed
        self.broken_share = 0.0
        self._num_disk_moves = 0
        self.engines = ENGINES[:num_engines]
        self.harness = ControlHarness(
            self.recorded,
            {engine: self.make_engine() for engine in self.engines},
            late_transfers=transfer_seed is not None,
        )
        self.actors: list[Actor] = []
        self.exports: dict[TenantId, dict[str, tuple[CommandOutcome, TrackedQueue]]] = {}
        self.tolerated: frozenset[str] = frozenset()
        self._programs = count(1)

    def make_engine(self) -> FakeEngine:
        return FakeEngine(
            self.pool, transfer_seed=self._transfer_seed, disk_fault=lambda move: self._breaks()
        )

    def _breaks(self) -> bool:
        """Whether a transfer from or to the disk fails: ``broken_share`` of them, in turn."""
        before, self._num_disk_moves = self._num_disk_moves, self._num_disk_moves + 1
        return int(before * self.broken_share) != int(self._num_disk_moves * self.broken_share)

    # -- programs and queues -----------------------------------------------------------------------

    def start_program(self, tenant: str = "red", *, priority: int = 0) -> Actor:
        actor = Actor(ProgramId(next(self._programs)), TenantId(tenant))
        self.harness.post(
            ProgramStarted(
                time_s=self.harness.now_s,
                program=actor.program,
                tenant=actor.tenant,
                form="inferlet",
                name=f"p{actor.program}",
                priority=priority,
            )
        )
        self.actors.append(actor)
        self.create_queue(actor)
        return actor

    def create_queue(self, actor: Actor, *, priority: int = 0) -> TrackedQueue:
        number = QueueId(next(actor.ids))
        made = CreateQueue(number, ModelId("fake"), depth=number % 3, priority=priority)
        self.harness.call(actor.program, made)
        queue = TrackedQueue(actor, number, ReferenceProgram(self.pool.page_size))
        actor.queues.append(queue)
        return queue

    def queues(self) -> list[TrackedQueue]:
        """Queues whose program lives and that the test has not disturbed."""
        return [queue for a in self.actors if a.alive for queue in a.queues if queue.is_exact]

    def end_program(self, actor: Actor) -> None:
        self.disturb(*actor.queues, *self._importing())
        actor.alive = False
        for queue in actor.queues:
            queue.is_open = False
        for exports in self.exports.values():
            for name, (outcome, queue) in list(exports.items()):
                if queue.actor is actor and outcome.status != "done":
                    del exports[name]  # what was exported is left to the tenant
        self.harness.post(ProgramEnded(time_s=self.harness.now_s, program=actor.program))

    def _importing(self) -> list[TrackedQueue]:
        """Queues that may not find an export any more whose owner ends now."""
        return [
            queue
            for actor in self.actors
            for queue in actor.queues
            if any(isinstance(e.outcome.command, c.ImportPages) for e in queue.expected)
        ]

    def disturb(self, *queues: TrackedQueue) -> None:
        for queue in queues:
            queue.may_fail = True
        for exports in self.exports.values():  # what is exported from now on may lack pages
            for name, (outcome, owner) in list(exports.items()):
                if owner.is_disturbed and outcome.status == "pending":
                    del exports[name]

    def reset(self, queue: TrackedQueue) -> None:
        self.disturb(queue)
        program = queue.actor.program
        self.harness.call(program, ResetQueue(queue.id))

    def close(self, queue: TrackedQueue) -> None:
        self.disturb(queue)
        queue.is_open = False
        program = queue.actor.program
        self.harness.call(program, CloseQueue(queue.id))

    def cancel(self, queue: TrackedQueue, command: CommandId) -> None:
        self.disturb(queue)
        program = queue.actor.program
        self.harness.call(program, Cancel(command))

    # -- commands ----------------------------------------------------------------------------------

    def command_id(self, queue: TrackedQueue) -> CommandId:
        return CommandId(next(queue.actor.ids))

    def issue(self, queue: TrackedQueue, *commands: c.Command) -> list[CommandOutcome]:
        """Issue commands whose replies the reference knows."""
        replies = [queue.reference.apply(command) for command in commands]
        outcomes = self.harness.issue(queue.actor.program, queue.id, *commands)
        for outcome, reply in zip(outcomes, replies, strict=True):
            queue.expected.append(Expectation(outcome, reply))
        queue.last_command = commands[-1].id
        return outcomes

    def alloc_pages(self, queue: TrackedQueue, num_pages: int) -> list[PageId]:
        pages = [PageId(next(queue.actor.ids)) for _ in range(num_pages)]
        self.issue(queue, c.AllocPages(id=self.command_id(queue), pages=pages))
        queue.pages += pages
        return pages

    def embed(
        self,
        queue: TrackedQueue,
        tokens: Sequence[int],
        position: int,
        *,
        token_slots: list[TokenSlotId] | None = None,
    ) -> list[EmbedId]:
        """Embeds of tokens (or of token slots) at positions from ``position`` on."""
        num_tokens = len(token_slots or tokens)
        embeds = [EmbedId(next(queue.actor.ids)) for _ in range(num_tokens)]
        self.issue(
            queue,
            c.AllocEmbeds(id=self.command_id(queue), embeds=embeds),
            c.EmbedText(
                id=self.command_id(queue),
                tokens=list(tokens),
                positions=list(range(position, position + num_tokens)),
                embeds=embeds,
                token_slots=token_slots,
            ),
        )
        return embeds

    def output_embed(self, queue: TrackedQueue) -> EmbedId:
        embed = EmbedId(next(queue.actor.ids))
        self.issue(queue, c.AllocEmbeds(id=self.command_id(queue), embeds=[embed]))
        queue.embeds.append(embed)
        return embed

    def free_embeds(self, queue: TrackedQueue, embeds: list[EmbedId]) -> None:
        self.issue(queue, c.DeallocEmbeds(id=self.command_id(queue), embeds=embeds))

    def run_until_ended(self, outcome: CommandOutcome) -> None:
        for _ in range(MAX_STEPS):
            if outcome.status != "pending":
                return
            moves = self.harness.step() or self.start_lost()
            assert moves, f"nothing moves, yet {outcome} has not ended"
        raise AssertionError(f"{outcome} has not ended after {MAX_STEPS} steps")

    def start_lost(self) -> bool:
        """Start the engines that are down; False if none is."""
        down = [engine for engine in self.engines if engine not in self.harness.engines]
        for engine in down:
            self.harness.start_engine(engine, self.make_engine())
        return bool(down)

    # -- what must hold ----------------------------------------------------------------------------

    def check(self) -> None:
        """Compare everything that has come back with the reference."""
        for actor in self.actors:
            for queue in actor.queues:
                queue.expected = [e for e in queue.expected if not self._settle(queue, e)]

    def _settle(self, queue: TrackedQueue, expectation: Expectation) -> bool:
        """Whether the command has ended; what it gave until now is right."""
        outcome, reply = expectation.outcome, expectation.reply
        if queue.is_unknown:
            return outcome.status != "pending"
        if isinstance(reply, DecodeChunk):
            given = outcome.tokens
            assert given == reply.token_ids[: len(given)], (
                f"{outcome.command} gave {given}, not {reply.token_ids}"
            )
        if outcome.status == "done":
            assert_reply(outcome, reply)
        elif outcome.status != "pending":
            self.accept_failure(queue, outcome)
        return outcome.status != "pending"

    def accept_failure(self, queue: TrackedQueue, outcome: CommandOutcome) -> None:
        """A command was not done: the test must have caused that, or tolerate its reason."""
        assert outcome.error is not None
        tolerated = outcome.error.code in self.tolerated
        assert queue.is_disturbed or tolerated, (
            f"{outcome.command} ended as {outcome.status}: {outcome.error}"
        )
        queue.is_broken = True

    def finish(self) -> None:
        """Let everything end: no wedge, nothing lost, nothing left behind."""
        self.harness.run_until_idle(MAX_STEPS)
        assert not self.harness.pending(), f"wedged: {self.harness.pending()[:3]}"
        self.check()
        for actor in self.actors:
            if actor.alive:
                self.end_program(actor)
        self.harness.run_until_idle(MAX_STEPS)
        assert not self.harness.pending()
        self.check()
        self.harness.clock.advance(EXPORT_TTL_S)  # what was left to the tenants goes as well
        self.harness.post(Tick(time_s=self.harness.now_s))
        self.assert_empty()
        self._probe()

    def assert_empty(self) -> None:
        """Every block is free or cached; control counts no sequence, table or embed."""
        self.harness.controller.check_invariants()
        statistics = self.controller.statistics()
        assert (statistics.num_programs, statistics.num_pending_commands) == (0, 0), statistics
        for engine in statistics.engines:
            assert (engine.pool.num_held, engine.pool.num_transfers) == (0, 0), engine
            assert (
                engine.pool.num_host_free + engine.pool.num_host_cached
                == engine.pool.num_host_blocks
            ), engine
            assert (
                engine.pool.num_disk_free + engine.pool.num_disk_cached
                == engine.pool.num_disk_blocks
            ), engine
            assert engine.pool.num_free + engine.pool.num_cached == self.pool.groups[0].num_blocks
            assert (engine.num_open_sequences, engine.num_tables) == (0, 0), engine
            assert engine.num_in_flight == 0, engine
            assert engine.num_free_embeds == self.pool.num_embeds

    def _probe(self) -> None:
        """A last program gets exact answers, and with its message the engine has cleaned up."""
        queue = self.create_queue(self.start_program("red"))
        pages = self.alloc_pages(queue, self.pool.groups[0].num_blocks)
        (outcome,) = self.issue(
            queue,
            c.Decode(
                id=self.command_id(queue),
                context=[],
                output=pages,
                tokens=list(b"probe"),
                position=0,
                sampler=SamplerSpec(),
                stop=StopSpec(max_tokens=3),
            ),
        )
        self.run_until_ended(outcome)
        self.check()
        if len(self.harness.engines) == 1:
            [engine] = self.harness.engines.values()
            assert len(engine.open_sequences) <= 1
            assert len(engine.memory.tables) <= 1
        self.recorded.assert_replays()


def assert_reply(outcome: CommandOutcome, expected: ReplyValue) -> None:
    """The done ``outcome`` gave ``expected`` (distributions up to float32 rounding)."""
    match expected:
        case DecodeChunk():
            assert outcome.tokens == expected.token_ids, outcome
            last = outcome.chunks[-1]
            assert last.finish_reason == expected.finish_reason, outcome
            assert last.matched == expected.matched, outcome
            assert all(chunk.finish_reason is None for chunk in outcome.chunks[:-1]), outcome
            assert all(not chunk.num_cached_tokens for chunk in outcome.chunks[1:]), outcome
            if expected.logprobs is not None:
                given = [entry for chunk in outcome.chunks for entry in chunk.logprobs or ()]
                assert_logprobs(given, expected.logprobs)
            if expected.prompt_logprobs is not None:
                assert_logprobs(outcome.chunks[0].prompt_logprobs or [], expected.prompt_logprobs)
        case c.Dists(dists=dists):
            reply = outcome.reply
            assert isinstance(reply, c.Dists)
            assert [d.token_ids for d in reply.dists] == [d.token_ids for d in dists], outcome
            for given, wanted in zip(reply.dists, dists, strict=True):
                difference = max(abs(a - b) for a, b in zip(given.probs, wanted.probs, strict=True))
                assert difference < 1e-6
        case _:
            assert outcome.reply == expected, outcome


def assert_logprobs(given: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    assert [entry.token_id for entry in given] == [entry.token_id for entry in expected]
    for entry, wanted in zip(given, expected, strict=True):
        assert abs(entry.logprob - wanted.logprob) < 1e-4, (entry, wanted)
        assert entry.top_ids == wanted.top_ids
        pairs = zip(entry.top_logprobs, wanted.top_logprobs, strict=True)
        assert all(abs(a - b) < 1e-4 for a, b in pairs)
