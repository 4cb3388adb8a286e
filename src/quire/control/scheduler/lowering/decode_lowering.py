"""Puts decode commands into messages: prompt chunks, opening a sequence, blocks for steps ahead.

Owns how a ``DecodeRun`` moves between its phases; ``engine_scheduler`` decides when it does.
"""

from __future__ import annotations

import msgspec

from quire.control.engines.builder import BatchBuilder, ForwardRow
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.memory.packed_tokens import TOKEN_BYTES, pack_tokens, token_array
from quire.control.memory.pages import Page
from quire.control.memory.promises import Reclaim
from quire.control.memory.residency import secure
from quire.control.memory.table_entries import NO_BLOCK
from quire.control.programs.families import forbid_spare_tokens, require_tokens
from quire.control.programs.lookup import find_pages, usable
from quire.control.programs.program import Entry
from quire.control.scheduler.lowering.lowering import LoweringResult, canonical_prefix, follow_on
from quire.control.scheduler.lowering.seeds import SeedSource
from quire.core.batch import ExtendSequence, OpenSequence
from quire.core.commands import Decode
from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument


class DecodeLowering:
    """Adds decodes to messages of one engine."""

    def __init__(self, engine: EngineState, seeds: SeedSource) -> None:
        self._engine = engine
        self._seeds = seeds

    def prefill(
        self, entry: Entry, command: Decode, builder: BatchBuilder, reclaim: Reclaim
    ) -> LoweringResult:
        """Run the next tokens that have no K and V yet; the last chunk opens the sequence."""
        budget = min(builder.budget, builder.prompt_budget)
        if budget <= 0:  # by the next message the prefix index may have more of the prompt
            return LoweringResult.NO_BUDGET
        run = entry.run
        if run is None:
            run = self._start(entry, command)
            if run is None:
                return LoweringResult.WAITS
        elif isinstance(run, DecodeRun):
            follow_on(run.cursor, self._pages(run), run.position, self._engine.page_size)
        assert isinstance(run, DecodeRun)
        count = min(run.num_to_run, budget)
        opens = count == run.num_to_run and run.max_tokens > 0
        # One slot more than the prompt: the engine ends a sequence whose cursor has no room.
        spans = run.cursor.spans(min(count + opens, run.cursor.num_free_slots))
        seen = [page.content for page in self._pages(run) if page.fill and page.content]
        if not self._engine.bind(run.cursor, spans, seen, builder, reclaim):
            return LoweringResult.NO_ROOM
        self._add_chunk(run, count, opens, builder)
        builder.prompt_budget -= count
        return LoweringResult.PARTIAL if run.num_to_run else LoweringResult.ADDED

    def _start(self, entry: Entry, command: Decode) -> DecodeRun | None:
        context = find_pages(entry, command.context)
        output = find_pages(entry, command.output) if context else usable(entry.pages)
        own = entry.queue.serial
        appenders = [page.appender for page in output if page.appender is not None]
        if appenders and any(one != own for one in appenders):
            return None
        run = self._create(entry, command, context, self._tail(output))
        self._map_cached(run)
        for page in run.locked:
            page.lock(own)
        entry.run = run
        return run

    def _tail(self, output: list[Page]) -> list[Page]:
        """The output pages from the first that is not full; those behind it must be empty."""
        size = self._engine.page_size
        first = next((i for i, page in enumerate(output) if page.fill < size), len(output))
        filled = [page.id for page in output[first + 1 :] if page.fill]
        if filled:
            raise InvalidArgument(
                f"output pages {filled} are filled but stand behind {output[first].id}, which "
                "is not full: a decode appends without a gap, so truncate or reorder them"
            )
        return output[first:]

    def _create(
        self, entry: Entry, command: Decode, context: list[Page], tail: list[Page]
    ) -> DecodeRun:
        count, size = len(command.tokens), self._engine.page_size
        adapter = self._engine.adapter_index(command.adapter)
        prefix = canonical_prefix(context, tail, command.position, size, adapter)
        cursor = self._engine.cursor(entry, tail, prefix, adapter)
        room = cursor.num_free_slots - count
        if room < 0:
            raise InvalidArgument(
                f"{count} tokens do not fit into output pages with {cursor.num_free_slots} free "
                "slots: name more pages"
            )
        if command.stop.max_tokens:
            require_tokens(entry.program, 1)
            if entry.queue.is_spare:
                forbid_spare_tokens(entry.program)
        left = self._engine.info.max_model_len - command.position - count
        max_tokens = min(command.stop.max_tokens, room + 1, left + 1)
        sampler = self._seeds.fill(command.sampler)
        packed = entry.queue.take_packed(command.tokens)
        return DecodeRun(entry, command, packed, context, cursor, sampler, max_tokens)

    def begin_again(self, run: DecodeRun) -> None:
        """Begin ``run`` of another engine again here. Its tokens are run from the first on, sampled
        ones too, except pages that the prefix index has."""
        tail, adapter = run.cursor.pages, run.cursor.adapter
        size = self._engine.page_size
        prefix = canonical_prefix(run.context, tail, run.start_position, size, adapter)
        run.begin_again(self._engine.cursor(run.entry, tail, prefix, adapter))
        self._map_cached(run)

    def _map_cached(self, run: DecodeRun) -> None:
        """Map pages of the prompt that the prefix index has (one token is always computed)."""
        command, cursor, queue = run.command, run.cursor, run.entry.queue
        known, queue.prompt_keys = queue.prompt_keys, None
        if known is not None and known.packed is not run.packed:
            known = None  # they are the keys of another command's prompt
        if not command.cache or not cursor.prefix.is_canonical or run.prompt_logprobs is not None:
            return
        packed, first = run.packed, cursor.pages[0]
        if first.fill:  # the index may have a full page that begins with these tokens
            assert first.content is not None
            packed, known = pack_tokens(first.content.tokens[: first.fill]) + packed, None
        tenant = run.entry.program.tenant
        index = self._engine.memory.index
        max_pages = len(packed) // (TOKEN_BYTES * self._engine.page_size)
        parent, adapter = cursor.prefix.parent, cursor.adapter
        found = index.match(tenant, parent, packed, max_pages, adapter, known)
        run.num_cached = cursor.map_cached(found, command.position)
        if run.num_cached == run.num_tokens:
            cursor.reopen_last_slot()
            run.num_cached -= 1
        run.num_run = run.num_cached
        run.entry.program.num_cached_tokens += run.num_cached

    def _pages(self, run: DecodeRun) -> list[Page]:
        """The pages of the run's table: the filled pages of its context, then its own as far as
        bound."""
        own = run.cursor.bound_pages()
        if not run.context:  # most decodes name their pages as their output alone
            return own
        tail = set(run.cursor.pages)
        return [page for page in run.context if page.fill and page not in tail] + own

    def _add_chunk(self, run: DecodeRun, count: int, opens: bool, builder: BatchBuilder) -> None:
        tokens = run.tokens_between(run.num_run, run.num_run + count)
        positions = range(run.position, run.position + count)
        spans = run.cursor.spans(count)
        slots = run.cursor.slots(spans)
        undo = [(page, page.fill) for page, _ in spans]
        filled = run.cursor.record(positions, tokens)
        if run.command.cache:
            builder.filled += filled
        targets = self._score_targets(run, count)
        pages = self._pages(run)
        table = self._engine.place_table(run.entry.queue, pages, run.hidden, builder.serial)
        first_token = run.num_run
        run.num_run += count
        row = ForwardRow(
            table=table.id,
            tokens=tokens,
            embeds=[-1] * count,
            positions=list(positions),
            slots=slots,
            outputs=[-1] * count,
            score_targets=targets,
            num_scores=run.command.num_prompt_logprobs or 0,
            adapter=run.cursor.adapter,
        )
        builder.forward(run.entry, row, first_token, undo, is_final=not run.num_to_run)
        if opens:
            run.table, run.table_pages = table, pages
            self._open(run, builder)

    def _score_targets(self, run: DecodeRun, count: int) -> list[int]:
        if run.prompt_logprobs is None or run.num_run >= run.num_prompt:
            return []
        following = run.command.tokens[run.num_run + 1 : run.num_run + count + 1]
        return following + [-1] * (count - len(following))

    def _open(self, run: DecodeRun, builder: BatchBuilder) -> None:
        engine, size = self._engine, self._engine.page_size
        taken = engine.take_sequence(run)
        assert taken
        assert run.table is not None
        assert run.sequence is not None
        engine.tables.lease(run.table)
        run.pins = [page.content for page in run.table_pages if page.content is not None]
        assert len(run.pins) == len(run.table_pages), "a page of a sequence has no content"
        engine.memory.pin_all(run.pins)
        cursor = self._cursor_slot(run)
        run.first_entry = cursor // size
        run.num_opened_with = run.num_tokens
        run.next_slot, run.limit_slot = cursor, len(run.table_pages) * size
        engine.operations.add(
            OpenSequence(
                sequence=run.sequence,
                epoch=run.epoch,
                table=run.table.id,
                cursor=cursor,
                limit=len(run.table_pages) * size,
                position=run.position,
                sampler=run.sampler,
                stop=self._stop(run),
                grammar=run.command.grammar,
                num_logprobs=run.command.num_logprobs,
                history=token_array(run.take_packed_history()),
                num_generated=run.num_generated + run.command.num_generated,
                adapter=run.cursor.adapter,
            )
        )
        builder.open_sequence(run)

    def _stop(self, run: DecodeRun) -> StopSpec:
        """The stop conditions with the bounds as the engine counts them: from the first sampled
        token on, which an earlier command may have sampled."""
        stop, before = run.command.stop, run.command.num_generated
        return msgspec.structs.replace(
            stop,
            max_tokens=run.max_tokens + before,
            min_tokens=min(stop.min_tokens, run.max_tokens) + before if stop.min_tokens else 0,
        )

    def _cursor_slot(self, run: DecodeRun) -> int:
        """The place of the next token, in slots of the run's table: in one of its last pages, if
        that has room."""
        size, pages = self._engine.page_size, run.table_pages
        for page, _ in run.cursor.spans(1):
            for number in range(len(pages) - 1, -1, -1):
                if pages[number] is page:
                    return number * size + page.fill
        return len(pages) * size

    def bind_ahead(self, run: DecodeRun, num_slots: int, reclaim: Reclaim) -> bool:
        """Bind blocks for the next ``num_slots`` tokens of an open sequence, as far as its output
        pages go; False if there is no room."""
        if run.next_slot + num_slots <= run.limit_slot:
            return True  # as in most steps: the page at hand has room
        engine, cursor = self._engine, run.cursor
        num_slots = min(num_slots, cursor.num_free_slots)
        spans = cursor.spans(num_slots)
        _, num_new = cursor.unbound(spans)
        if not num_new:
            return True
        if secure(engine.memory, [], num_new, reclaim) is None:
            return False
        cursor.bind(spans)
        known = run.table_pages[-len(spans) :]  # its last ones, as those of the spans come last
        added = [page for page, _ in spans if page not in known]
        assert len(added) == num_new
        assert run.table is not None
        assert run.sequence is not None
        blocks = []
        for page in added:
            assert page.content is not None
            engine.memory.pin(page.content)
            run.pins.append(page.content)
            blocks.append(NO_BLOCK if page.content.block is None else page.content.block)
        run.table.write(len(run.table_pages), blocks, [0] * len(blocks), engine.operations)
        run.table_pages += added
        run.limit_slot = len(run.table_pages) * engine.page_size
        engine.operations.add(ExtendSequence(sequence=run.sequence, limit=run.limit_slot))
        return True
