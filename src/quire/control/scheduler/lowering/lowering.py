"""Puts commands of the fine tier into items of a message.

Owns how each command becomes rows, slots and tables. It finds memory through ``EngineState`` and
decides nothing about order.
"""

from __future__ import annotations

from enum import Enum

from quire.control.engines.builder import BatchBuilder, ForwardRow
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.state import EngineState
from quire.control.memory.append_cursor import AppendCursor, Prefix
from quire.control.memory.embeds import HeldEmbed
from quire.control.memory.pages import Page, canonical_chain
from quire.control.memory.promises import Reclaim
from quire.control.programs.families import count_tokens, require_tokens
from quire.control.programs.lookup import find_embeds, find_pages, slot_of
from quire.control.programs.program import Entry
from quire.control.scheduler.lowering.page_copy import copy_slots
from quire.control.scheduler.lowering.page_turn import reposition
from quire.control.scheduler.lowering.seeds import SeedSource
from quire.core.commands import (
    CopyPage,
    EmbedImage,
    EmbedText,
    Forward,
    GetNextDist,
    RepositionPage,
    Sample,
)
from quire.core.errors import InvalidArgument, NeverFits, UnknownHandle
from quire.core.ids import TokenSlotId


class LoweringResult(Enum):
    """ADDED: all of it is in the message · PARTIAL: a part is · NO_ROOM: it waits for blocks ·
    NO_BUDGET: the message has no tokens left for it · WAITS: for another command to end.
    """

    ADDED = "added"
    PARTIAL = "partial"
    NO_ROOM = "no_room"
    NO_BUDGET = "no_budget"
    WAITS = "waits"


_ADDED = LoweringResult.ADDED
"""Bound once: Python 3.11 looks up a member of an enum at each use, which costs more than the
use."""


def find_room(output: list[Page], num_tokens: int, page_size: int) -> list[Page]:
    """The pages of ``output`` that take the next tokens; if those do not suffice, all that are not
    full. The full ones before them and the empty ones behind are not touched."""
    found: list[Page] = []
    for page in output:
        if page.fill < page_size:
            found.append(page)
            num_tokens -= page_size - page.fill
            if num_tokens <= 0:
                break
    return found


class Lowering:
    """Adds fine-tier commands to messages of one engine."""

    def __init__(self, engine: EngineState, seeds: SeedSource) -> None:
        self._engine = engine
        self._seeds = seeds

    def embed_text(self, entry: Entry, command: EmbedText, builder: BatchBuilder) -> LoweringResult:
        embeds = find_embeds(entry, command.embeds, written=False)
        tokens: list[int | None] = list(command.tokens)
        values = list(command.tokens)
        if command.token_slots is not None:
            tokens = [None] * len(embeds)
            values = [self._token_value(entry, name) for name in command.token_slots]
        slots = [slot_of(embed) for embed in embeds]
        if not builder.read_embeds.isdisjoint(slots):  # rows read what embeds are after this stage
            return LoweringResult.NO_BUDGET
        for embed, position, token in zip(embeds, command.positions, tokens, strict=True):
            embed.write(position, token)
        builder.fine.embed(entry, values, slots)
        return _ADDED

    def embed_image(
        self, entry: Entry, command: EmbedImage, builder: BatchBuilder
    ) -> LoweringResult:
        """Add the image, one in a message: the tower takes as long as a long prompt, and decodes
        wait."""
        embeds = find_embeds(entry, command.embeds, written=False)
        slots = [slot_of(embed) for embed in embeds]
        if builder.has_image or not builder.read_embeds.isdisjoint(slots):
            return LoweringResult.NO_BUDGET
        for embed, position in zip(embeds, command.positions, strict=True):
            embed.write(position, None)
        builder.fine.image(entry, command.image, slots)
        return _ADDED

    def _token_value(self, entry: Entry, name: TokenSlotId) -> int:
        """The number that refers to the token in slot ``name``, whose id control may not know
        yet."""
        slot = entry.program.token_slots.get((self._engine.id, name))
        if slot is None:
            raise UnknownHandle(f"token slot {name} holds no token: sample into it first")
        return ~slot

    def copy_page(
        self, entry: Entry, command: CopyPage, builder: BatchBuilder, reclaim: Reclaim
    ) -> LoweringResult:
        source, target = find_pages(entry, [command.source, command.target])
        if source.appender is not None or target.appender is not None:
            return LoweringResult.WAITS
        stop = command.source_offset + command.num_slots
        if stop > source.fill or command.target_offset > target.fill:
            raise InvalidArgument(
                f"copy of slots {command.source_offset}..{stop} of page {source.id} (filled to "
                f"{source.fill}) to slot {command.target_offset} of page {target.id} (filled to "
                f"{target.fill}): copy written slots, and leave no gap in the target"
            )
        if copy_slots(self._engine, source, target, command, builder, reclaim):
            builder.operation(entry)
            return _ADDED
        return LoweringResult.NO_ROOM

    def reposition_page(
        self, entry: Entry, command: RepositionPage, builder: BatchBuilder, reclaim: Reclaim
    ) -> LoweringResult:
        (page,) = find_pages(entry, [command.page])
        if page.appender is not None:
            return LoweringResult.WAITS
        if not command.shift or not page.fill:
            builder.operation(entry)
            return _ADDED
        if not builder.has_room_to_turn(page.fill, self._engine.info.pool.max_batch_tokens):
            return LoweringResult.NO_BUDGET
        if not reposition(self._engine, page, command.shift, builder, reclaim):
            return LoweringResult.NO_ROOM
        builder.num_turned += page.fill
        builder.operation(entry)
        return _ADDED

    def dists(self, entry: Entry, command: GetNextDist, builder: BatchBuilder) -> LoweringResult:
        embeds = find_embeds(entry, command.embeds, written=True)
        require_tokens(entry.program, len(embeds))
        entry.num_generated_tokens += len(embeds)
        count_tokens(entry, len(embeds))
        self._engine.num_generated_tokens += len(embeds)
        top_k = min(command.top_k, self._engine.info.vocab_size)
        builder.fine.dists(entry, [slot_of(embed) for embed in embeds], top_k)
        return _ADDED

    def sample(self, entry: Entry, command: Sample, builder: BatchBuilder) -> LoweringResult:
        embeds = find_embeds(entry, command.embeds, written=True)
        require_tokens(entry.program, len(embeds))
        token_slots = [-1] * len(embeds)
        if command.token_slots is not None:
            token_slots = self._engine.token_slots_for(entry.queue, command.token_slots)
        entry.num_generated_tokens += len(embeds)
        count_tokens(entry, len(embeds))
        self._engine.num_generated_tokens += len(embeds)
        builder.fine.samples(
            entry,
            [slot_of(embed) for embed in embeds],
            self._seeds.fill(command.sampler),
            command.positions,
            token_slots,
            command.history or [],
        )
        return _ADDED

    def forward(
        self, entry: Entry, command: Forward, builder: BatchBuilder, reclaim: Reclaim
    ) -> LoweringResult:
        run = entry.run
        if run is None:
            run = self._start_forward(entry, command)
            if run is None:
                return LoweringResult.WAITS
        elif isinstance(run, ForwardRun) and run.cursor is not None:
            position = run.positions[run.num_run]
            follow_on(run.cursor, run.table_pages(), position, self._engine.page_size)
        assert isinstance(run, ForwardRun)
        num_to_run, limit = run.num_to_run, self._engine.info.pool.max_batch_tokens
        if num_to_run > limit and not run.is_splittable:
            raise NeverFits(
                f"forward of {num_to_run} tokens in one piece, but a message holds {limit}: "
                "keep K and V (name output pages) and order the inputs by position, so that it "
                "can be split, or raise max_batch_tokens",
                num_tokens=num_to_run,
                max_batch_tokens=limit,
            )
        count = min(num_to_run, builder.budget)
        if count < num_to_run and (count <= 0 or not run.is_splittable):
            return LoweringResult.NO_BUDGET
        if not self._add_forward_row(run, count, builder, reclaim):
            return LoweringResult.NO_ROOM
        return _ADDED if count == num_to_run else LoweringResult.PARTIAL

    def _start_forward(self, entry: Entry, command: Forward) -> ForwardRun | None:
        context = find_pages(entry, command.context)
        is_same = command.output == command.context
        output = context if is_same else find_pages(entry, command.output)
        size = self._engine.page_size
        tail = find_room(output, len(command.inputs), size)
        for page in tail:
            if page.appender not in (None, entry.queue.serial):
                return None
        inputs = find_embeds(entry, command.inputs, written=True)
        outputs = find_embeds(entry, command.outputs, written=False)
        adapter = self._engine.adapter_index(command.adapter)
        cursor = None
        if output:
            prefix = self._prefix(context, tail, inputs, adapter)
            cursor = self._engine.cursor(entry, tail, prefix, adapter)
            if command.mask is not None:
                cursor.prefix = Prefix(False, None)
            if cursor.num_free_slots < len(inputs):
                raise InvalidArgument(
                    f"{len(inputs)} tokens do not fit into {len(output)} output pages with "
                    f"{cursor.num_free_slots} free slots: name more pages"
                )
        run = ForwardRun(entry, command, context, cursor, inputs, outputs, adapter, size)
        for page in tail:
            page.lock(entry.queue.serial)
        entry.run = run
        return run

    def _prefix(
        self, context: list[Page], output: list[Page], inputs: list[HeldEmbed], adapter: int
    ) -> Prefix:
        """The prefix of the inputs: canonical if they continue, one by one, exactly what the
        context shows."""
        first = inputs[0].position
        for index, embed in enumerate(inputs):
            if embed.position != first + index:
                return Prefix(False, None)
        return canonical_prefix(context, output, first, self._engine.page_size, adapter)

    def _add_forward_row(
        self, run: ForwardRun, count: int, builder: BatchBuilder, reclaim: Reclaim
    ) -> bool:
        start, stop = run.num_run, run.num_run + count
        size = self._engine.page_size
        spans = [] if run.cursor is None else run.cursor.spans(count)
        if not self._engine.bind(run.cursor, spans, run.seen(), builder, reclaim):
            return False
        positions = run.positions[start:stop]
        slots = [-1] * count
        undo: list[tuple[Page, int]] = []
        if run.cursor is not None:
            undo = [(page, page.fill) for page, _ in spans]
            slots = run.cursor.slots(spans)
            run.note_written(spans)
            builder.filled += run.cursor.record(
                positions, [e.token for e in run.inputs[start:stop]]
            )
        pages = run.table_pages()
        table = None
        if pages:
            queue = run.entry.queue
            table = self._engine.place_table(queue, pages, run.hidden, builder.serial).id
        embeds = [slot_of(embed) for embed in run.inputs[start:stop]]
        builder.read_embeds.update(embeds)
        row = ForwardRow(
            table=table,
            tokens=[0] * count,
            embeds=embeds,
            positions=positions,
            slots=slots,
            outputs=[-1 if e is None else slot_of(e) for e in run.outputs[start:stop]],
            mask=run.mask_rows(start, stop, pages, size),
            adapter=run.adapter,
            score_columns=run.score_columns(start, stop, pages),
        )
        for index in range(start, stop):
            embed = run.outputs[index]
            if embed is not None:
                embed.write(run.positions[index] + 1, None)
        run.num_run = stop
        builder.forward(run.entry, row, start, undo, is_final=stop == len(run.inputs))
        return True


def canonical_prefix(
    context: list[Page], tail: list[Page], position: int, page_size: int, adapter: int
) -> Prefix:
    """The prefix that new tokens from ``position`` on follow; canonical if they continue a
    canonical one.

    The context must show exactly tokens 0..position-1, computed with the same adapter, and the next
    slot must be the one behind. ``tail``: the output pages from the first that is not full.
    """
    opaque = Prefix(False, None)
    chain = canonical_chain(context, page_size, adapter)
    if chain is None or chain.num_tokens != position:
        return opaque
    if not tail or position % page_size != tail[0].fill:
        return opaque
    if tail[0].fill and chain.last is not tail[0]:
        return opaque
    return Prefix(True, chain.parent)


def follow_on(cursor: AppendCursor, pages: list[Page], position: int, page_size: int) -> None:
    """Look at the prefix of a command again, which goes on at ``position`` behind ``pages``: other
    commands may have changed pages of its context since it began."""
    if cursor.prefix.is_canonical:
        tail = [page for page, _ in cursor.spans(1)]
        cursor.prefix = canonical_prefix(pages, tail, position, page_size, cursor.adapter)
