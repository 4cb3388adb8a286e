"""Control driven from outside in every order of events, against the reference."""

from __future__ import annotations

import sys

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule
from machines_programs import TEXTS, ProgramsMachine, picks, samplers, texts
from machines_world import ENGINE, ENGINES

from quire.core import commands as c
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import EmbedId, PageId, TokenSlotId

MAX_LOOP = 5
"""Steps of the low-level loop. Token slots belong to the program, so every queue has its own."""


class ControlMachine(ProgramsMachine):
    """Everything that a program can do, and everything that can happen to it."""

    # -- the fine tier -----------------------------------------------------------------------------

    @rule(pick=picks, text=texts, keep=st.booleans(), masked=st.booleans(), gap=st.integers(0, 3))
    def forward(self, pick: int, text: list[int], keep: bool, masked: bool, gap: int) -> None:
        """Embed, run behind some pages, look at the distribution, sample."""
        queue, world = self.queue(pick), self.world
        tokens = text[:4]
        context = self.some_pages(queue.pages, pick)
        inputs = world.embed(queue, tokens, queue.next_position(context) + gap)
        last = world.output_embed(queue)
        output = []
        if keep:
            output = [page for page in context if page not in queue.sealed]
            output += world.alloc_pages(queue, 1)
            if queue.reference.room(output) < len(tokens):
                output += world.alloc_pages(queue, self.pages_for(len(tokens)))
        num_columns = len(context) * self.page_size + len(tokens)
        mask = [
            [(pick >> (row * 5 + column) % 20) % 3 > 0 for column in range(num_columns)]
            for row in range(len(tokens))
        ]
        self.world.issue(
            queue,
            c.Forward(
                id=world.command_id(queue),
                context=context,
                inputs=inputs,
                output=output,
                outputs=[last],
                mask=mask if masked else None,
            ),
            c.GetNextDist(id=world.command_id(queue), embeds=[last], top_k=3),
        )
        world.free_embeds(queue, inputs)

    @rule(pick=picks, num_tokens=st.integers(1, MAX_LOOP), sampler=samplers)
    def loop(self, pick: int, num_tokens: int, sampler: SamplerSpec) -> None:
        """Pie's low-level loop, issued at once: each step runs the token before anyone saw it."""
        queue, world = self.queue(pick), self.world
        if not queue.embeds:
            return
        last: EmbedId = queue.embeds[-1]
        context = self.some_pages(queue.pages, pick)
        position = queue.next_position(context)
        pages = world.alloc_pages(queue, self.pages_for(num_tokens))
        for step in range(num_tokens):
            slot = TokenSlotId(queue.actor.queues.index(queue) * MAX_LOOP + step)
            world.issue(
                queue,
                c.Sample(
                    id=world.command_id(queue),
                    embeds=[last],
                    sampler=sampler,
                    positions=[position + step],
                    token_slots=[slot],
                ),
            )
            inputs = world.embed(queue, [0], position + step, token_slots=[slot])
            last = world.output_embed(queue)
            world.issue(
                queue,
                c.Forward(
                    id=world.command_id(queue),
                    context=[*context, *pages],
                    inputs=inputs,
                    output=pages,
                    outputs=[last],
                ),
            )
            world.free_embeds(queue, inputs)

    # -- pages -------------------------------------------------------------------------------------

    @rule(pick=picks, bits=st.integers(0, 2**16 - 1))
    def mask_page(self, pick: int, bits: int) -> None:
        queue = self.queue(pick)
        if not queue.writable:
            return
        page = queue.writable[pick % len(queue.writable)]
        fill = queue.fill(page)
        visible = [i >= fill or bool(bits >> i & 1) for i in range(self.page_size)]
        self.world.issue(
            queue, c.MaskPage(id=self.world.command_id(queue), page=page, visible=visible)
        )

    @rule(pick=picks, fill=st.integers(0, 15))
    def truncate_page(self, pick: int, fill: int) -> None:
        queue = self.queue(pick)
        if not queue.writable:
            return
        page = queue.writable[pick % len(queue.writable)]
        self.world.issue(
            queue,
            c.TruncatePage(
                id=self.world.command_id(queue), page=page, fill=min(fill, queue.fill(page))
            ),
        )

    @rule(pick=picks, source_offset=st.integers(0, 15), target_offset=st.integers(0, 15))
    def copy_page(self, pick: int, source_offset: int, target_offset: int) -> None:
        queue = self.queue(pick)
        if not queue.writable:
            return
        source = queue.pages[pick % len(queue.pages)]
        target = queue.writable[pick // 7 % len(queue.writable)]
        target_offset = min(target_offset, queue.fill(target))
        num_slots = min(queue.fill(source) - source_offset, self.page_size - target_offset)
        if source == target or num_slots < 1:
            return
        self.world.issue(
            queue,
            c.CopyPage(
                id=self.world.command_id(queue),
                source=source,
                source_offset=source_offset,
                target=target,
                target_offset=target_offset,
                num_slots=num_slots,
            ),
        )

    @rule(pick=picks, shift=st.integers(-40, 40))
    def reposition_page(self, pick: int, shift: int) -> None:
        queue = self.queue(pick)
        if not queue.writable:
            return
        page = queue.writable[pick % len(queue.writable)]
        first = min((slot.position for slot in queue.reference.pages[page].slots), default=0)
        self.world.issue(
            queue,
            c.RepositionPage(id=self.world.command_id(queue), page=page, shift=max(shift, -first)),
        )

    @rule(pick=picks)
    def free_pages(self, pick: int) -> None:
        queue = self.queue(pick)
        pages = self.some_pages(queue.pages, pick, 8)
        queue.pages = [page for page in queue.pages if page not in pages]
        self.world.issue(queue, c.DeallocPages(id=self.world.command_id(queue), pages=pages))

    @rule(pick=picks)
    def fork_queue(self, pick: int) -> None:
        """Another queue goes on behind pages of this one, in order through ``after``."""
        queue, world = self.queue(pick), self.world
        if queue.last_command is None or len(queue.actor.queues) >= 4:
            return
        context = self.some_pages(queue.pages, pick, 5)
        fork = world.create_queue(queue.actor)
        queue.sealed.update(context)
        for page in context:
            fork.reference.pages[page] = queue.reference.pages[page]
        pages = world.alloc_pages(fork, self.pages_for(9))
        world.issue(
            fork,
            c.Decode(
                id=world.command_id(fork),
                after=(queue.last_command,),
                context=context,
                output=pages,
                tokens=TEXTS[2],
                position=queue.next_position(context),
                sampler=SamplerSpec(),
                stop=StopSpec(max_tokens=4),
            ),
        )
        fork.parents.append(queue)

    # -- sharing -----------------------------------------------------------------------------------

    @rule(pick=picks)
    def export_pages(self, pick: int) -> None:
        queue, world = self.queue(pick), self.world
        pages = self.some_pages(queue.pages, pick, 5)
        command = c.ExportPages(
            id=world.command_id(queue),
            pages=pages,
            name=f"e{queue.actor.program}.{pick}",
            tokens=list(range(1, pick % 3)) if pick % 2 else None,
        )
        exports = world.exports.setdefault(queue.actor.tenant, {})
        if command.name in exports:
            return
        (outcome,) = world.issue(queue, command)
        exports[command.name] = (outcome, queue)

    @rule(pick=picks)
    def import_pages(self, pick: int) -> None:
        queue, world = self.queue(pick), self.world
        exports = world.exports.get(queue.actor.tenant, {})
        done = {
            name: owner for name, (outcome, owner) in exports.items() if outcome.status == "done"
        }
        if not done:
            return
        name = sorted(done)[pick % len(done)]
        if not done[name].actor.alive or self.num_engines > 1:
            world.disturb(queue)  # it may have gone, because memory was needed, or be elsewhere
        queue.reference.exports[name] = done[name].reference.exports[name]
        num_pages = len(queue.reference.exports[name].pages)
        pages = [PageId(next(queue.actor.ids)) for _ in range(num_pages)]
        world.issue(queue, c.ImportPages(id=world.command_id(queue), name=name, pages=pages))
        queue.pages += pages

    @rule(pick=picks, text=texts, more=st.integers(0, 6))
    def import_prefix(self, pick: int, text: list[int], more: int) -> None:
        queue, world = self.queue(pick), self.world
        tokens = text + text[:more]
        pages = [PageId(next(queue.actor.ids)) for _ in range(len(tokens) // self.page_size)]
        command = c.ImportPrefix(id=world.command_id(queue), tokens=tokens, pages=pages)
        (outcome,) = world.harness.issue(queue.actor.program, queue.id, command)
        world.run_until_ended(outcome)
        world.check()
        if outcome.status != "done":
            world.accept_failure(queue, outcome)
            return
        assert isinstance(outcome.reply, c.Imported)
        found = outcome.reply.num_tokens
        assert found < len(tokens)
        assert outcome.reply == queue.reference.apply_prefix(command, found)
        queue.pages += pages[: found // self.page_size]

    # -- disturbance -------------------------------------------------------------------------------

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        queue = self.queue(pick)
        pending = [e.outcome for e in queue.expected if e.outcome.status == "pending"]
        if pending:
            self.world.cancel(queue, pending[pick % len(pending)].command.id)

    @rule(pick=picks)
    def reset_queue(self, pick: int) -> None:
        self.world.reset(self.queue(pick))

    @rule(pick=picks)
    def close_queue(self, pick: int) -> None:
        self.world.close(self.queue(pick))

    @rule(pick=picks, kind=st.integers(0, 3))
    def bad_command(self, pick: int, kind: int) -> None:
        """Refused, and nobody else notices: its queue is as it was after a reset."""
        queue, world = self.queue(pick), self.world
        if any(e.outcome.status == "pending" for e in queue.expected):
            return
        stranger, command_id = PageId(999_999), world.command_id(queue)
        command = (
            c.DeallocPages(id=command_id, pages=[stranger]),
            c.AllocPages(id=command_id, pages=[PageId(5), PageId(5)]),
            c.ImportPages(id=command_id, name="no such export", pages=[]),
            c.Decode(
                id=command_id, context=[], output=queue.pages[:1], tokens=[10_000], position=0,
                sampler=SamplerSpec(), stop=StopSpec(max_tokens=1),
            ),
        )[kind]  # fmt: skip
        (outcome,) = world.harness.issue(queue.actor.program, queue.id, command)
        world.run_until_ended(outcome)
        assert outcome.status == "failed", outcome
        (behind,) = world.harness.issue(
            queue.actor.program, queue.id, c.AllocPages(id=world.command_id(queue), pages=[])
        )
        world.run_until_ended(behind)
        assert behind.error is not None
        assert behind.error.code == "queue_poisoned"
        world.reset(queue)
        queue.may_fail = False


class EngineLossMachine(ControlMachine):
    """The same, and the engine is lost with its memory now and then."""

    @rule()
    def lose_engine(self) -> None:
        world = self.world
        world.disturb(*(queue for actor in world.actors for queue in actor.queues))
        world.harness.lose_engine(ENGINE)
        world.harness.start_engine(ENGINE, world.make_engine())


class ReplicasMachine(ControlMachine):
    """The same on three engines of the model: those that are lost come up again some time, and
    others take over from them meanwhile."""

    num_engines = 3

    @rule(pick=picks)
    def lose_engine(self, pick: int) -> None:
        world = self.world
        up = list(world.harness.engines)
        if up:
            world.disturb(*(queue for actor in world.actors for queue in actor.queues))
            world.harness.lose_engine(up[pick % len(up)])

    @rule(pick=picks)
    def start_engine(self, pick: int) -> None:
        world = self.world
        down = [engine for engine in ENGINES if engine not in world.harness.engines]
        if down:
            world.harness.start_engine(down[pick % len(down)], world.make_engine())

    @rule()
    def run(self) -> None:
        self.world.start_lost()
        super().run()

    def teardown(self) -> None:
        if hasattr(self, "world") and sys.exc_info()[0] is None:
            self.world.start_lost()
        super().teardown()


class DecodesOnReplicasMachine(ProgramsMachine):
    """Nothing but completions, on two engines of which one at a time is lost: nobody notices."""

    num_engines = 2

    @initialize()
    def count_losses(self) -> None:
        self.num_lost = 0

    @rule(pick=picks)
    def lose_engine(self, pick: int) -> None:
        """Behind it all that was in flight ends: nothing may lose two engines."""
        harness = self.world.harness
        lost = ENGINES[pick % 2]
        harness.lose_engine(lost)
        harness.run_until_idle(4000)
        harness.start_engine(lost, self.world.make_engine())

    go_on = None  # type: ignore[assignment]  # pages with a gap in their positions would be lost


class SmallHostMachine(ControlMachine):
    """The same with hardly any host memory: commands may be refused, but only as retriable."""

    num_host_blocks = 3
    tolerated = frozenset({"pool_exhausted", "queue_poisoned"})


TestControl = ControlMachine.TestCase
TestEngineLoss = EngineLossMachine.TestCase
TestReplicas = ReplicasMachine.TestCase
TestDecodesOnReplicas = DecodesOnReplicasMachine.TestCase
TestSmallHost = SmallHostMachine.TestCase
