"""A text whose beginning stands on pages: its tokens, its pages, and what runs on them.

Owns what may happen to a text when, and what of it counts as computed afterwards. Knows nothing of
strings or chats: tokens go in, generations and distributions come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quire.core.decoding import Dist, GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord, InvalidArgument
from quire.programs.api import Model
from quire.programs.api.allocate import Allocate
from quire.programs.api.core import Core
from quire.programs.api.decode import Decode
from quire.programs.chat.detokenize import TextStream
from quire.programs.sdk.generation import Generation
from quire.programs.sdk.ledger import PageLedger
from quire.programs.sdk.page_span import PageSpan, Sees
from quire.programs.sdk.samplers import greedy
from quire.programs.sdk.stepping import ScoredStep, Stepper

GREEDY = greedy()


class PagedText:
    """Has a queue of its own. One thing runs at a time; ``ledger`` is shared with its forks."""

    def __init__(
        self,
        model: Model,
        ledger: PageLedger | None = None,
        *,
        priority: int = 0,
        thread: int = 0,
        adapter: str | None = None,
    ) -> None:
        self.model = model
        self.tokens: list[int] = []
        self._adapter = adapter
        self._ledger = ledger or PageLedger(model.issuer)
        self._priority, self._thread = priority, thread
        self._begin()
        self._running: Generation | None = None
        self._is_stepping = False
        self._is_plain = True
        """Whether every token sees all before it: then the pages can be computed from the text."""
        self._num_forked = 0
        self._dropped = False

    def _begin(self) -> None:
        """With no page, on a queue where nothing has failed."""
        core = Core(self.model.issuer)
        self.queue = core.create_queue(self.model, priority=self._priority, thread=self._thread)
        self._span = PageSpan(self.model, self.queue, self._ledger)
        self._stepper = Stepper(self.model, self._span, self._adapter)

    @property
    def num_pages(self) -> int:
        return self._span.num_pages

    @property
    def num_shared_pages(self) -> int:
        return self._span.num_shared_pages

    @property
    def running(self) -> bool:
        """Whether a generation is under way."""
        return self._running is not None

    # -- what may happen when ----------------------------------------------------------------------

    def check_free(self) -> None:
        """Whether something may begin. After a failure that the program was told of, on new pages:
        what the old ones hold is not known.

        Raises:
            InvalidArgument: it was dropped, a generation or a step is under way, or it has failed
                and the text does not tell what its pages held.
        """
        if self._dropped:
            raise InvalidArgument("this context has been dropped: make a new one")
        if self._running is not None:
            raise InvalidArgument(
                "this context is generating: await that first, or fork before it begins"
            )
        if self._is_stepping:
            raise InvalidArgument(
                "another task waits for a distribution of this context: await that first, or give "
                "each task a fork"
            )
        lane = self.queue.lane
        if lane.failure is not None and lane.failure_seen:
            self._begin_again(lane.failure)

    def _begin_again(self, failure: ErrorRecord) -> None:
        if not self._is_plain:
            raise InvalidArgument(
                f"this context has failed ({failure.message}), and tokens of it were evicted, "
                "masked or imported, so its pages cannot be computed again: make a new one"
            )
        span, stepper = self._span, self._stepper
        self._begin()
        stepper.drop()
        span.drop()

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """A step waits between its commands; its tokens must stay those that it began with."""
        self.check_free()
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def room(self) -> int:
        """How many tokens fit behind the text.

        Raises:
            InvalidArgument: there is no text to go on from.
            PromptTooLong: none do.
        """
        if not self.tokens:
            raise InvalidArgument("the context is empty: fill it before generating")
        return self.model.served.room_behind(len(self.tokens))

    # -- computing ---------------------------------------------------------------------------------

    def generate(
        self,
        stop: StopSpec,
        sampler: SamplerSpec,
        grammar: GrammarSpec | None,
        num_logprobs: int | None,
        text: TextStream,
    ) -> Generation:
        """Go on with the whole text, of which at least the last token is run (again)."""
        if self._span.num_run == len(self.tokens):
            self._span.rewind(len(self.tokens) - 1)
        return self._decode(stop, sampler, grammar, num_logprobs, text, len(self.tokens))

    async def prefill(self, num_tokens: int) -> None:
        """Have the first ``num_tokens`` computed; those that are stay."""
        self.check_free()
        if not 0 <= num_tokens <= len(self.tokens):
            raise InvalidArgument(
                f"prefill of {num_tokens} tokens, the context has {len(self.tokens)}"
            )
        await self._prefill(num_tokens)

    async def _prefill(self, num_tokens: int) -> None:
        if num_tokens > self._span.num_run:
            silent = TextStream(self.model.tokenizer)
            await self._decode(StopSpec(0), GREEDY, None, None, silent, num_tokens)

    async def dists(self, num: int, top_k: int, sees: Sees | None) -> list[Dist]:
        """The distributions behind the last ``num`` tokens; see ``Context.next_dists``."""
        with self._stepping():
            self._is_plain = self._is_plain and sees is None
            await self._before_last(num, sees)
            return await self._stepper.dists(self.tokens[-num:], top_k, sees)

    async def scored(self, num: int, top_k: int) -> ScoredStep:
        """``dists``, and where the tokens looked."""
        with self._stepping():
            await self._before_last(num, None)
            return await self._stepper.scored(self.tokens[-num:], top_k)

    async def _before_last(self, num: int, sees: Sees | None) -> None:
        """Have all tokens computed but the last ``num``."""
        self.room()
        first = len(self.tokens) - num
        if num < 1 or first < 0:
            raise InvalidArgument(
                f"distributions after {num} tokens of {len(self.tokens)}: ask for at least one, "
                "and at most as many as there are"
            )
        if first < self._span.num_run:
            self._span.rewind(first)
        elif sees is None and not self._span.has_gaps and first > self._span.num_run:
            await self._prefill(first)  # it may be in the prefix index
        await self._stepper.run(self.tokens[self._span.num_run : first], sees)

    def _decode(
        self,
        stop: StopSpec,
        sampler: SamplerSpec,
        grammar: GrammarSpec | None,
        num_logprobs: int | None,
        text: TextStream,
        end: int,
    ) -> Generation:
        """Run the tokens up to ``end`` that are not in pages, then sample."""
        span, start = self._span, self._span.num_run
        span.ensure(end + max(stop.max_tokens - 1, 0))
        stream = Decode(self.model.issuer).decode(
            span.ordered(),
            span.written,
            self.tokens[start:end],
            span.writable,
            position=start,
            sampler=sampler,
            stop=stop,
            grammar=grammar,
            num_logprobs=num_logprobs,
            history=self.tokens[:start] or None,
            adapter=self._adapter,
        )
        span.issued(stream)
        self._running = Generation(
            stream, text, lambda token_ids, error: self._ended(start, end, token_ids, error)
        )
        return self._running

    def _ended(self, start: int, end: int, token_ids: list[int], error: ErrorRecord | None) -> None:
        """Tokens ``start`` to ``end`` were run and ``token_ids`` sampled, all but the last run.

        What a decode without an answer has run is unknown, so nothing of it counts.
        """
        self._running = None
        if self._dropped:
            return
        self.tokens += token_ids
        if token_ids:
            end += len(token_ids) - 1
        elif error is not None:
            end = start
        if error is None or error.code == "program_cancelled":
            self._span.rewind(end)

    # -- shape -------------------------------------------------------------------------------------

    def fork(self) -> PagedText:
        """The same text on the same full pages."""
        self.check_free()
        fork = PagedText(
            self.model,
            self._ledger,
            priority=self._priority,
            thread=self._thread,
            adapter=self._adapter,
        )
        fork.tokens = list(self.tokens)
        fork._span.fork_from(self._span)
        fork._is_plain = self._is_plain
        fork._num_forked = len(self.tokens)
        return fork

    def gained(self) -> list[int]:
        """What has come behind the text that it was forked with."""
        return self.tokens[self._num_forked :]

    def truncate(self, num_tokens: int) -> None:
        """See ``Context.truncate``."""
        self.check_free()
        if not 0 <= num_tokens <= len(self.tokens):
            raise InvalidArgument(
                f"truncate to {num_tokens} tokens, the context has {len(self.tokens)}"
            )
        if self._span.num_run > num_tokens:
            self._span.rewind(num_tokens)
        del self.tokens[num_tokens:]
        self._is_plain = self._is_plain or not num_tokens

    def evict(self, start: int, stop: int) -> None:
        """See ``Context.evict``."""
        self.check_free()
        if stop >= len(self.tokens):
            raise InvalidArgument(
                f"evict up to token {stop} of {len(self.tokens)}: never the last, whose "
                "distribution may be asked for again"
            )
        self._span.evict(start, stop)
        self._is_plain = False

    def forget(self, start: int, stop: int) -> int:
        """See ``Context.forget``."""
        self.check_free()
        if stop >= len(self.tokens):
            raise InvalidArgument(
                f"forget up to token {stop} of {len(self.tokens)}: never the last, whose "
                "distribution may be asked for again"
            )
        first, num_tokens = self._span.forget(start, stop)
        if num_tokens:
            del self.tokens[first : first + num_tokens]
            self._num_forked -= max(0, min(self._num_forked - first, num_tokens))
            self._is_plain = False
        return num_tokens

    async def export(self, name: str, ttl_s: float | None) -> int:
        """See ``Context.export``."""
        if self._span.has_gaps:
            raise InvalidArgument("tokens of this context were evicted: export before that")
        await self.prefill(max(len(self.tokens) - 1, 0))
        span = self._span
        await Allocate(self.model.issuer).export_kvpage(
            span.ordered(), span.written, name, ttl_s=ttl_s, tokens=self.tokens
        )
        return span.num_run

    async def adopt(self, name: str, tokens: Sequence[int] | None) -> None:
        """Begin with the pages that are exported as ``name``, and with ``tokens``: by default those
        that the exporter gave.

        Raises:
            UnknownHandle: no such export.
            InvalidArgument: there are no tokens, or fewer than in the pages.
        """
        imported = await Allocate(self.model.issuer).import_text(self.queue, name)
        self._span.adopt(imported.pages)
        self._is_plain = False
        given = imported.tokens if tokens is None else tokens
        if given is None:
            raise InvalidArgument(
                f"export {name!r} was made without its tokens: pass those that the exporter had"
            )
        if self._span.num_run > len(given):
            raise InvalidArgument(
                f"export {name!r} holds {self._span.num_run} tokens, {len(given)} were given: "
                "pass those that the exporter had"
            )
        self.tokens += given

    def drop(self) -> None:
        """Give the pages back and end what runs. Idempotent; nothing can follow."""
        if self._dropped:
            return
        self._dropped = True
        if self._running is not None:
            self._running.cancel()
        self._stepper.drop()
        self._span.drop()
