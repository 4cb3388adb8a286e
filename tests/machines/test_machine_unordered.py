"""Programs whose queues change, in any order, what commands of their other queues read: what those
compute is their own affair, and what the prefix index has is true for everybody."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

sys.path.insert(0, str(Path(__file__).parent.parent / "control"))

from control_world import ENGINE, World

from quire.control.memory.content import ChainNode, Content
from quire.core import commands as c
from quire.core.calls import Cancel, Issue, ResetQueue
from quire.core.decoding import StopSpec
from quire.core.events import Called, ProgramEnded
from quire.core.ids import CommandId, ProgramId, QueueId

SIZE, BUDGET = 4, 8
PROGRAMS, QUEUES = 2, 3

programs = st.integers(1, PROGRAMS)
queues = st.integers(1, QUEUES)
texts = st.integers(20, 59).map(lambda first: text_of(first))
picks = st.integers(0, 2**16)


def text_of(first: int) -> tuple[int, ...]:
    """Six pages: a prompt takes several messages. No two texts have a page in common."""
    return (first, *range(60, 83))


def index_of(world: World) -> list[Content]:
    return list(world.controller._engines[ENGINE].memory.index.contents())


def kept(world: World, content: Content) -> bytes | None:
    """K and V of ``content``, which may be on a lower tier."""
    if content.block is None:
        return None
    slots = range(content.block * SIZE, (content.block + 1) * SIZE)
    values: bytes = world.engine.memory.slots.values[:, np.array(slots)].tobytes()
    return values


def tokens_of(node: ChainNode) -> tuple[int, ...]:
    return tuple(token for one in node.path() for token in one.tokens)


@cache
def true_pages(text: tuple[int, ...]) -> dict[tuple[int, ...], bytes | None]:
    """K and V of the pages of ``text`` that nobody disturbs, by all tokens up to their end."""
    world = World(page_size=SIZE, num_blocks=64)
    world.program(1)
    pages = range(len(text) // SIZE)
    world.do(1, world.alloc(pages), world.decode(pages, text, stop=StopSpec(max_tokens=0)))
    return {tokens_of(one.node): kept(world, one) for one in index_of(world) if one.node}


class UnorderedMachine(RuleBasedStateMachine):
    """``pages``: those that each program has named; some may be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            page_size=SIZE, num_blocks=48, num_host_blocks=4, max_batch_tokens=BUDGET
        )
        for program in range(1, PROGRAMS + 1):
            self.world.program(program, queues=QUEUES)
        self.num_pages = 0
        self.pages: dict[int, list[int]] = {one: [] for one in range(1, PROGRAMS + 1)}

    def issue(self, program: int, queue: int, *commands: c.Command, more: bool = False) -> None:
        call = Issue(QueueId(queue), list(commands))
        now_s, number = self.world.harness.now_s, ProgramId(program)
        self.world.harness.post(Called(time_s=now_s, program=number, call=call, more=more))

    def new_pages(self, program: int, num: int) -> list[int]:
        self.num_pages += num
        pages = list(range(self.num_pages - num, self.num_pages))
        self.pages[program] += pages
        return pages

    def page(self, program: int, pick: int) -> int:
        """One of the latest pages, as a rule one that is read now."""
        pages = self.pages[program][-24:] or [0]
        return pages[pick % len(pages)]

    @rule(
        program=programs, one=queues, other=queues, text=texts, num=st.integers(1, 4),
        cached=st.booleans(), empty=st.booleans(), max_tokens=st.integers(0, 6),
        num_steps=st.integers(0, 3), kind=st.integers(0, 4), pick=picks,
    )  # fmt: skip
    def prompt(
        self,
        program: int,
        one: int,
        other: int,
        text: tuple[int, ...],
        num: int,
        cached: bool,
        empty: bool,
        max_tokens: int,
        num_steps: int,
        kind: int,
        pick: int,
    ) -> None:
        """The first ``num`` pages of a text, then the rest behind them, perhaps with an empty page
        in its context to which others may append. Another queue changes one of these pages."""
        world, split = self.world, num * SIZE
        first, rest = self.new_pages(program, num), self.new_pages(program, 8)
        begin = world.decode(first, text[:split], stop=StopSpec(max_tokens=0), cache=cached)
        self.issue(program, one, world.alloc([*first, *rest]), begin)
        go_on = world.decode(
            rest[1:] if empty else rest,
            text[split:],
            max_tokens,
            position=split,
            context=[*first, *rest[:1]] if empty else first,
            after=(begin.id,),
        )
        self.issue(program, other, go_on)
        self.step(num_steps)
        context = go_on.context
        change = self.change(program, context[pick % len(context)], pick, kind)
        self.issue(program, other % QUEUES + 1, change)

    @rule(program=programs, queue=queues, text=texts, pick=picks, more=st.booleans())
    def forward(
        self, program: int, queue: int, text: tuple[int, ...], pick: int, more: bool
    ) -> None:
        """A text through embeds, one of which another queue writes anew."""
        world, embeds = self.world, [100 * self.num_pages + one for one in range(len(text))]
        output = self.new_pages(program, len(text) // SIZE)
        forward = world.forward([], embeds, output)
        commands = world.alloc(output), world.alloc_embeds(embeds), world.embed(embeds, text)
        self.issue(program, queue, *commands, forward, more=more)
        place = pick % len(text)
        again = world.embed([embeds[place]], [7], position=place)
        self.issue(program, queue % QUEUES + 1, again)
        free = c.DeallocEmbeds(id=world.id(), embeds=list(embeds), after=(forward.id,))
        self.issue(program, queue, free)

    def change(self, program: int, page: int, pick: int, kind: int) -> c.Command:
        world, low, source = self.world, pick % SIZE, self.page(program, pick // 7)
        changes: list[c.Command] = [
            c.MaskPage(id=world.id(), page=page, visible=[slot != low for slot in range(SIZE)]),
            c.TruncatePage(id=world.id(), page=page, fill=low),
            c.CopyPage(
                id=world.id(), source=source, target=page, source_offset=0, target_offset=0,
                num_slots=SIZE - low,
            ),
            c.RepositionPage(id=world.id(), page=page, shift=1 + low),
            world.decode([page], [3] * (1 + low), position=pick % 9, stop=StopSpec(max_tokens=0)),
        ]  # fmt: skip
        return changes[kind]

    @rule(program=programs, queue=queues, pick=picks, kind=st.integers(0, 4), more=st.booleans())
    def disturb(self, program: int, queue: int, pick: int, kind: int, more: bool) -> None:
        change = self.change(program, self.page(program, pick), pick, kind)
        self.issue(program, queue, change, more=more)

    @rule(program=programs, queue=queues, pick=picks)
    def cut_and_append(self, program: int, queue: int, pick: int) -> None:
        world, page, fill = self.world, self.page(program, pick), pick % SIZE
        cut = c.TruncatePage(id=world.id(), page=page, fill=fill)
        tail = world.decode([page], [3] * (SIZE - fill), position=fill, stop=StopSpec(max_tokens=0))
        self.issue(program, queue, cut, tail)

    @rule(program=programs, pick=picks)
    def free(self, program: int, pick: int) -> None:
        self.issue(program, 1, self.world.dealloc([self.page(program, pick)]))

    @rule(program=programs, queue=queues)
    def reset(self, program: int, queue: int) -> None:
        self.world.harness.call(ProgramId(program), ResetQueue(QueueId(queue)))

    @rule(program=programs, back=st.integers(0, 5))
    def cancel(self, program: int, back: int) -> None:
        number = CommandId(self.world.num_commands - back)
        self.world.harness.call(ProgramId(program), Cancel(number))

    @rule(num=st.integers(1, 4))
    def step(self, num: int) -> None:
        for _ in range(num):
            self.world.harness.step()

    @rule()
    def look(self) -> None:
        """Everything in the index is what its tokens say, once no message is under way."""
        self.world.run()
        for content in index_of(self.world):
            assert content.node is not None
            tokens, found = tokens_of(content.node), kept(self.world, content)
            known = true_pages(text_of(tokens[0]))
            if found is not None and tokens in known:
                assert found == known[tokens], f"the page behind {tokens} is another one"

    def teardown(self) -> None:
        self.look()
        for program in range(1, PROGRAMS + 1):
            now_s = self.world.harness.now_s
            self.world.harness.post(ProgramEnded(time_s=now_s, program=ProgramId(program)))
        self.world.run()
        assert self.world.pool.num_held == 0


TestUnordered = UnorderedMachine.TestCase
