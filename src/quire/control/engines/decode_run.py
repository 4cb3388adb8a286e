"""The life of one decode command in control.

Owns its progress: which of its tokens have been run, what was sampled, its sequence while one is
open. It neither builds rows nor finds memory (``lowering`` and ``engine_scheduler`` do).
"""

from __future__ import annotations

from quire.control.engines.forward_run import hidden_fills
from quire.control.memory.append_cursor import AppendCursor
from quire.control.memory.content import Content
from quire.control.memory.packed_tokens import TOKEN_BYTES, pack_tokens
from quire.control.memory.pages import Page
from quire.control.memory.tables import ResidentTable
from quire.control.programs.program import Entry
from quire.core.commands import Decode
from quire.core.decoding import DecodeChunk, FinishReason, SamplerSpec, TokenLogprobs
from quire.core.ids import SequenceId


class DecodeRun:
    """Its tokens are the prompt, which stays the command's own list, then ``output``. The first
    ``num_run`` have K and V in the pages. ``packed``: those that there were when it began, until a
    sequence is opened.

    While ``sequence`` is set the engine appends tokens itself: all tokens but the last have been
    run. ``num_opened_with``: the number of tokens when the sequence was opened.
    ``num_outstanding``: tokens that messages in flight may still sample. ``table_pages``: the pages
    of the entries of its open table; from entry ``first_entry`` on the engine sets bits itself.
    ``next_slot``: the table slot of the next known token; the engine may write up to
    ``limit_slot``. ``pins``: the contents of its pages, pinned while the sequence is open.
    ``start_fill``: the fill of its first output page when the command began; the pages behind it
    were empty. ``kept``: log probabilities that are sent with the last reply.
    """

    def __init__(
        self,
        entry: Entry,
        command: Decode,
        packed: bytes,
        context: list[Page],
        cursor: AppendCursor,
        sampler: SamplerSpec,
        max_tokens: int,
    ) -> None:
        self.entry = entry
        self.command = command
        self.context = context
        self.cursor = cursor
        self.sampler = sampler
        self.max_tokens = max_tokens
        self.output: list[int] = []
        self.packed = packed
        self.start_position = command.position
        self.num_logprobs = command.num_logprobs
        self.streams = command.stream
        self.kept: list[TokenLogprobs] | None = None
        self.num_prompt = len(command.tokens)
        self.num_run = 0
        self.num_cached = 0
        written = [page for page in cursor.pages[:1] if page.fill]
        self.start_fill = written[0].fill if written else 0
        self.hidden = hidden_fills(written, context) if written else {}
        self.table: ResidentTable | None = None
        self.table_pages: list[Page] = []
        self.sequence: SequenceId | None = None
        self.epoch = 0
        self.num_opened_with = 0
        self.first_entry = 0
        self.next_slot = 0
        self.limit_slot = 0
        self.pins: list[Content] = []
        self.num_outstanding = 0
        self.first_token_s: float | None = None
        self.prompt_logprobs: list[TokenLogprobs] | None = (
            None if command.num_prompt_logprobs is None else []
        )
        self._has_replied = False

    @property
    def position(self) -> int:
        """Position of the first token that has not been run."""
        return self.start_position + self.num_run

    @property
    def num_generated(self) -> int:
        return len(self.output)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + len(self.output)

    def tokens_between(self, start: int, stop: int) -> list[int]:
        """The tokens from ``start`` on, before ``stop``."""
        num_prompt = self.num_prompt
        if start >= num_prompt:
            return self.output[start - num_prompt : stop - num_prompt]
        tokens = self.command.tokens[start:stop]
        return tokens + self.output[: stop - num_prompt] if stop > num_prompt else tokens

    @property
    def num_to_run(self) -> int:
        """Tokens that forward rows have to run before a sequence can be opened or the command
        ends."""
        return self.num_prompt + len(self.output) - self.num_run

    @property
    def is_open(self) -> bool:
        return self.sequence is not None

    def take_packed_history(self) -> bytes:
        """The tokens that a sequence continues, packed."""
        packed, self.packed = self.packed, b""  # it is long, and seldom needed again
        if len(packed) != self.num_tokens * TOKEN_BYTES:
            packed = self._pack()
        before = self.command.history
        return pack_tokens(before) + packed if before else packed

    def _pack(self) -> bytes:
        return pack_tokens(self.command.tokens) + pack_tokens(self.output)

    def begin_again(self, cursor: AppendCursor) -> None:
        """Begin again after the engine was lost. ``cursor`` appends to the same pages elsewhere, as
        they were when the command began. What was sent stays sent."""
        self.cursor = cursor
        self.packed = self._pack()
        self.num_run = self.num_cached = self.num_outstanding = 0
        self.table_pages = []
        self.first_entry = self.next_slot = self.limit_slot = 0
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = None if self._has_replied else []

    @property
    def locked(self) -> list[Page]:
        """The pages to which this command alone appends, from its beginning to its end."""
        return self.cursor.pages

    @property
    def start_fills(self) -> list[tuple[Page, int]]:
        """The output pages, and how far each was filled when the command began."""
        return [(page, 0 if number else self.start_fill) for number, page in enumerate(self.locked)]

    def unlock(self) -> None:
        """Let other commands append to its pages, as it has ended."""
        for page in self.locked:
            page.unlock()

    def chunk(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprobs] | None,
        finish_reason: FinishReason | None,
        matched: int | bytes | None,
    ) -> DecodeChunk:
        """The next reply; the first one includes the fields that are sent once."""
        is_first, self._has_replied = not self._has_replied, True
        if not is_first and finish_reason is None:  # as in most steps
            return DecodeChunk(token_ids=tokens, logprobs=logprobs)
        return DecodeChunk(
            token_ids=tokens,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs if is_first else None,
            finish_reason=finish_reason,
            matched=matched,
            num_cached_tokens=self.num_cached if is_first else 0,
            seed=self.sampler.seed if is_first else None,
            first_token_after_s=None if self.streams else self._first_token_after_s,
        )

    def last_chunk(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprobs] | None,
        finish_reason: FinishReason,
        matched: int | bytes | None,
    ) -> DecodeChunk:
        """The reply that ends the command. ``tokens``, ``logprobs``: those of the last message."""
        if self.streams:
            return self.chunk(tokens, logprobs, finish_reason, matched)
        self.keep(logprobs)
        return self.chunk(self.output, self.kept, finish_reason, matched)

    def keep(self, logprobs: list[TokenLogprobs] | None) -> None:
        """Keep ``logprobs`` for the last reply of a command that does not stream."""
        if logprobs is not None:
            if self.kept is None:
                self.kept = []
            self.kept.extend(logprobs)

    def untold(self) -> DecodeChunk | None:
        """A reply with what was sampled but not sent, for a command that fails; None if there is
        nothing."""
        if self.streams or self._has_replied or not self.num_generated:
            return None
        return self.chunk(self.output, self.kept, None, None)

    @property
    def _first_token_after_s(self) -> float | None:
        first_s = self.first_token_s
        return None if first_s is None else first_s - self.entry.arrival_s
