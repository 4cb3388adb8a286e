"""The expected replies to a program's commands: their semantics (``core.commands``) without memory.

A ``ReferenceProgram`` applies commands in the order in which they take effect and returns the reply
of each. Pages are lists of tokens that were run; there are no blocks, no batches, no scheduler.
Knows valid commands only: which commands are refused, and when, is up to the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quire.core import commands as c
from quire.core.actions import ReplyValue
from quire.core.decoding import DecodeChunk, TokenLogprobs
from quire.core.ids import EmbedId, PageId, TokenSlotId
from quire.core.interfaces import Tokenizer
from quire.testing.fake_engine.hashing import logits_of
from quire.testing.fake_engine.sampling import sample_token
from quire.testing.oracle import (
    ReferenceContext,
    SeenToken,
    expected_decode,
    expected_dist,
    expected_logprobs,
    token_content,
    turned,
)
from quire.testing.tokenizer import FakeTokenizer


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """Written slots in order, and which of them the holder has masked. Immutable."""

    slots: tuple[SeenToken, ...] = ()
    hidden: frozenset[int] = frozenset()

    def truncated(self, fill: int) -> ReferencePage:
        return ReferencePage(self.slots[:fill], frozenset(i for i in self.hidden if i < fill))


@dataclass(frozen=True, slots=True)
class ReferenceEmbed:
    """``position``: where the embed runs as an input; that of an output is its token's plus one."""

    content: int
    position: int


@dataclass(frozen=True, slots=True)
class ReferenceExport:
    """The pages at the time of their export, and the text that the exporter gave."""

    pages: tuple[ReferencePage, ...]
    tokens: list[int] | None


@dataclass(slots=True)
class ReferenceProgram:
    """See the module docstring. ``exports`` is shared by the programs of one tenant."""

    page_size: int
    exports: dict[str, ReferenceExport] = field(default_factory=dict)
    tokenizer: Tokenizer = field(default_factory=FakeTokenizer)
    pages: dict[PageId, ReferencePage] = field(default_factory=dict)
    embeds: dict[EmbedId, ReferenceEmbed | None] = field(default_factory=dict)
    token_slots: dict[TokenSlotId, int] = field(default_factory=dict)

    def apply(self, command: c.Command) -> ReplyValue:
        """Let ``command`` take effect; returns its expected (last) reply.

        The reply to a decode is one chunk with all of its tokens. ``ImportPrefix`` depends on the
        index: use ``apply_prefix`` with the result.
        """
        match command:
            case c.AllocPages(pages=pages):
                self.pages.update(dict.fromkeys(pages, ReferencePage()))
            case c.DeallocPages(pages=pages):
                for page in pages:
                    del self.pages[page]
            case c.AllocEmbeds(embeds=embeds):
                self.embeds.update(dict.fromkeys(embeds))
            case c.DeallocEmbeds(embeds=embeds):
                for embed in embeds:
                    del self.embeds[embed]
            case c.ExportPages(pages=pages, name=name, tokens=tokens):
                held = tuple(self.pages[page] for page in pages)
                self.exports[name] = ReferenceExport(held, tokens)
            case c.ReleaseExport(name=name):
                del self.exports[name]
            case c.ImportPages(name=name, pages=pages):
                export = self.exports[name]
                return self._import(pages, export.pages, export.tokens)
            case c.MaskPage(page=page, visible=visible):
                hidden = frozenset(i for i, shown in enumerate(visible) if not shown)
                self.pages[page] = replace(self.pages[page], hidden=hidden)
            case c.RepositionPage(page=page, shift=shift):
                old = self.pages[page]
                slots = tuple(turned(slot, shift) for slot in old.slots)
                self.pages[page] = replace(old, slots=slots)
            case c.TruncatePage(page=page, fill=fill):
                self.pages[page] = self.pages[page].truncated(fill)
            case c.CopyPage():
                self._copy(command)
            case c.EmbedText():
                self._embed(command)
            case c.Forward():
                self._forward(command)
            case c.GetNextDist(embeds=embeds, top_k=top_k):
                return self._dists(embeds, top_k)
            case c.Sample():
                return self._sample(command)
            case c.Decode():
                return self._decode(command)
            case c.ImportPrefix():
                raise NotImplementedError("ImportPrefix depends on the index: use apply_prefix")
        return None

    def apply_prefix(self, command: c.ImportPrefix, num_tokens: int) -> c.Imported:
        """Apply an ``ImportPrefix`` that found ``num_tokens``."""
        size = self.page_size
        context, _ = ReferenceContext().run_tokens(command.tokens[:num_tokens])
        found = [
            ReferencePage(context.seen[start : start + size])
            for start in range(0, num_tokens, size)
        ]
        return self._import(command.pages, found)

    def _import(
        self,
        ids: Sequence[PageId],
        found: Sequence[ReferencePage],
        tokens: list[int] | None = None,
    ) -> c.Imported:
        imported = []
        for page_id, page in zip(ids, found, strict=False):
            self.pages[page_id] = page
            flags = [i < len(page.slots) and i not in page.hidden for i in range(self.page_size)]
            positions = [slot.position for slot in page.slots]
            imported.append(c.ImportedPage(page_id, len(page.slots), positions, flags))
        return c.Imported(imported, sum(len(page.slots) for page in found), tokens)

    def _copy(self, command: c.CopyPage) -> None:
        source, target = self.pages[command.source], self.pages[command.target]
        start, stop = command.target_offset, command.target_offset + command.num_slots
        copied = source.slots[command.source_offset :][: command.num_slots]
        slots = target.slots[:start] + copied + target.slots[stop:]
        hidden = target.hidden - frozenset(range(start, stop))
        self.pages[command.target] = ReferencePage(slots, hidden)

    def _embed(self, command: c.EmbedText) -> None:
        tokens = list(command.tokens)
        if command.token_slots is not None:
            tokens = [self.token_slots[slot] for slot in command.token_slots]
        for embed, token, position in zip(command.embeds, tokens, command.positions, strict=True):
            self.embeds[embed] = ReferenceEmbed(token_content(token), position)

    def _written(self, embed: EmbedId) -> ReferenceEmbed:
        written = self.embeds[embed]
        assert written is not None, f"the test reads embed {embed}, which nothing wrote"
        return written

    def context(self, pages: Sequence[PageId]) -> ReferenceContext:
        """The visible tokens of ``pages``, in list order."""
        return ReferenceContext(
            tuple(
                slot
                for page in pages
                for i, slot in enumerate(self.pages[page].slots)
                if i not in self.pages[page].hidden
            )
        )

    def room(self, pages: Sequence[PageId]) -> int:
        """Free slots after the fill cursors of ``pages``."""
        return sum(self.page_size - len(self.pages[page].slots) for page in pages)

    def _append(self, pages: Sequence[PageId], new: Sequence[SeenToken]) -> None:
        rest = list(new)
        for page in pages:
            old = self.pages[page]
            count = self.page_size - len(old.slots)
            self.pages[page] = replace(old, slots=old.slots + tuple(rest[:count]))
            rest = rest[count:]
        assert not rest, "the test writes more than the pages hold"

    def _forward(self, command: c.Forward) -> None:
        inputs = [self._written(embed) for embed in command.inputs]
        context = self.context(command.context)
        mask = None if command.mask is None else self._visible_columns(command)
        after, hidden = context.run(
            [embed.content for embed in inputs], [embed.position for embed in inputs], mask
        )
        if command.output:
            self._append(command.output, after.seen[len(context.seen) :])
        num_outputs = len(command.outputs)
        last = zip(command.outputs, hidden[-num_outputs:], inputs[-num_outputs:], strict=True)
        for embed, value, token in last if num_outputs else ():
            self.embeds[embed] = ReferenceEmbed(value, token.position + 1)

    def _visible_columns(self, command: c.Forward) -> list[list[bool]]:
        """The mask over the visible context: columns of empty and masked slots are left out."""
        shown = [
            i < len(self.pages[page].slots) and i not in self.pages[page].hidden
            for page in command.context
            for i in range(self.page_size)
        ]
        shown += [True] * len(command.inputs)
        return [
            [flag for flag, kept in zip(row, shown, strict=True) if kept]
            for row in command.mask or ()
        ]

    def _dists(self, embeds: Sequence[EmbedId], top_k: int) -> c.Dists:
        vocabulary = self.tokenizer.vocab_size
        return c.Dists(
            [expected_dist(self._written(embed).content, vocabulary, top_k) for embed in embeds]
        )

    def _sample(self, command: c.Sample) -> c.Sampled:
        history = command.history or []
        tokens = []
        for embed, position in zip(command.embeds, command.positions, strict=True):
            hidden = np.array([self._written(embed).content], np.uint64)
            logits = logits_of(hidden, self.tokenizer.vocab_size)[0]
            tokens.append(sample_token(logits, command.sampler, position, history, history))
        if command.token_slots is not None:
            self.token_slots.update(zip(command.token_slots, tokens, strict=True))
        return c.Sampled(tokens)

    def _decode(self, command: c.Decode) -> DecodeChunk:
        expected = expected_decode(
            command.tokens,
            command.stop,
            sampler=command.sampler,
            context=self.context(command.context),
            position=command.position,
            history=command.history,
            grammar=command.grammar,
            max_room=self.room(command.output),
            tokenizer=self.tokenizer,
        )
        self._append(command.output, expected.ran)
        prompt, before_output = len(command.tokens), expected.hidden[len(command.tokens) - 1 :]
        return DecodeChunk(
            token_ids=expected.tokens,
            finish_reason=expected.finish_reason,
            matched=expected.matched,
            logprobs=self._logprobs(before_output, expected.tokens, command.num_logprobs),
            prompt_logprobs=self._logprobs(
                expected.hidden[: prompt - 1], command.tokens[1:], command.num_prompt_logprobs
            ),
        )

    def _logprobs(
        self, hidden: Sequence[int], tokens: Sequence[int], top_k: int | None
    ) -> list[TokenLogprobs] | None:
        if top_k is None:
            return None
        vocabulary = self.tokenizer.vocab_size
        return [
            expected_logprobs(state, token, vocabulary, top_k)
            for state, token in zip(hidden, tokens, strict=False)
        ]
