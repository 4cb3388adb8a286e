"""A text whose first tokens are in pages: its tokens, its pages, and the operations on them.

Owns the rules of which operation may start when, and of what counts as computed after it. Knows no
strings or chats: tokens go in, generations and distributions come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quire.core.decoding import Dist, GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord, InvalidArgument
from quire.programs.api import Model
from quire.programs.api.allocate import AllocateFunctions
from quire.programs.api.core import CoreFunctions
from quire.programs.api.decode import DecodeFunctions
from quire.programs.chat.detokenize import TextStream
from quire.programs.sdk.generation import Generation
from quire.programs.sdk.ledger import PageLedger
from quire.programs.sdk.page_span import PageSpan, Sees
from quire.programs.sdk.samplers import greedy
from quire.programs.sdk.stepping import ScoredStep, Stepper

GREEDY = greedy()


class PagedText:
    """A text with its pages, on a queue of its own. One operation runs at a time; ``ledger`` is
    shared with its forks."""

    def __init__(
        self,
        model: Model,
        ledger: PageLedger | None = None,
        *,
        priority: int = 0,
        thread: int = 0,
        depth: int = 0,
        adapter: str | None = None,
    ) -> None:
        self.model = model
        self.tokens: list[int] = []
        self._adapter = adapter
        self._ledger = ledger or PageLedger(model.issuer)
        self._priority, self._thread = priority, thread
        self._depth, self._invocation, self._remaining_us = depth, 0, 0
        self._begin()
        self._running: Generation | None = None
        self._is_stepping = False
        self._is_plain = True
        """Whether every token sees all before it, so that the pages can be recomputed from the
        text."""
        self._num_forked = 0
        self._dropped = False

    def _begin(self) -> None:
        """Start without pages, on a new queue."""
        core = CoreFunctions(self.model.issuer)
        self.queue = core.create_queue(
            self.model, thread=self._thread, depth=self._depth, priority=self._priority
        )
        if self._invocation or self._remaining_us:
            self._tell_depth()
        self._span = PageSpan(self.model, self.queue, self._ledger)
        self._stepper = Stepper(self.model, self._span, self._adapter)

    def set_depth(self, depth: int, invocation: int, remaining_us: int) -> None:
        """Set the step for what is computed from now on; see ``Context.set_depth``."""
        place = (depth, invocation, remaining_us)
        if place != (self._depth, self._invocation, self._remaining_us):
            self._depth, self._invocation, self._remaining_us = place
            self._tell_depth()

    def set_priority(self, priority: int) -> None:
        """Set the priority, also of what is running."""
        self._priority = priority
        if not self._dropped:
            CoreFunctions(self.model.issuer).set_queue_priority(self.queue, priority)

    def _tell_depth(self) -> None:
        CoreFunctions(self.model.issuer).set_queue_depth(
            self.queue,
            self._depth,
            invocation=self._invocation,
            remaining_us=self._remaining_us,
        )

    @property
    def num_pages(self) -> int:
        return self._span.num_pages

    @property
    def num_shared_pages(self) -> int:
        return self._span.num_shared_pages

    @property
    def running(self) -> bool:
        """Whether a generation is running."""
        return self._running is not None

    # -- what may happen when ----------------------------------------------------------------------

    def check_free(self) -> None:
        """Check that an operation may start. After a failure that the program has seen, start again
        with new pages, because the contents of the old ones are unknown.

        Raises:
            InvalidArgument: the text was dropped, a generation or a step is running, or it has
                failed and its pages cannot be recomputed from its tokens.
        """
        if self._dropped:
            raise InvalidArgument("this context has been dropped: make a new one")
        if self._running is not None:
            raise InvalidArgument(
                "this context is generating: await that first, or fork before it begins"
            )
        if self._is_stepping:
            raise InvalidArgument(
                "another task is computing a distribution of this context: await that first, or "
                "give each task a fork"
            )
        state = self.queue.state
        if state.failure is not None and state.failure_seen:
            self._begin_again(state.failure)

    def _begin_again(self, failure: ErrorRecord) -> None:
        if not self._is_plain:
            raise InvalidArgument(
                f"this context has failed ({failure.message}), and its pages cannot be recomputed "
                "because tokens were evicted, masked or imported: make a new context"
            )
        span, stepper = self._span, self._stepper
        self._begin()
        stepper.drop()
        span.drop()

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Guard a step, which awaits between its commands: the tokens must not change meanwhile."""
        self.check_free()
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def room(self) -> int:
        """The number of tokens that fit after the text.

        Raises:
            InvalidArgument: the text is empty.
            PromptTooLong: no token fits.
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
        stream: bool,
    ) -> Generation:
        """Continue the text. At least its last token is run, again if it was run before."""
        if self._span.num_run == len(self.tokens):
            self._span.rewind(len(self.tokens) - 1)
        return self._decode(stop, sampler, grammar, num_logprobs, text, len(self.tokens), stream)

    async def prefill(self, num_tokens: int) -> None:
        """Compute those of the first ``num_tokens`` tokens that are not computed yet."""
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
        """The distributions after each of the last ``num`` tokens; see ``Context.next_dists``."""
        with self._stepping():
            self._is_plain = self._is_plain and sees is None
            await self._before_last(num, sees)
            return await self._stepper.dists(self.tokens[-num:], top_k, sees)

    async def scored(self, num: int, top_k: int) -> ScoredStep:
        """``dists``, with attention scores."""
        with self._stepping():
            await self._before_last(num, None)
            return await self._stepper.scored(self.tokens[-num:], top_k)

    async def _before_last(self, num: int, sees: Sees | None) -> None:
        """Compute all tokens but the last ``num``."""
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
            await self._prefill(first)  # uses the prefix index
        await self._stepper.run(self.tokens[self._span.num_run : first], sees)

    def _decode(
        self,
        stop: StopSpec,
        sampler: SamplerSpec,
        grammar: GrammarSpec | None,
        num_logprobs: int | None,
        text: TextStream,
        end: int,
        stream: bool = True,
    ) -> Generation:
        """Run the tokens up to ``end`` that are not in pages, then sample."""
        span, start = self._span, self._span.num_run
        span.ensure(end + max(stop.max_tokens - 1, 0))
        decode = DecodeFunctions(self.model.issuer).decode(
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
            stream=stream,
        )
        span.issued(decode)
        self._running = Generation(
            decode, text, lambda token_ids, error: self._ended(start, end, token_ids, error)
        )
        return self._running

    def _ended(self, start: int, end: int, token_ids: list[int], error: ErrorRecord | None) -> None:
        """Note the end of a decode: tokens ``start`` to ``end`` were run and ``token_ids`` sampled,
        all but the last of which were run.

        If a decode failed without a reply, how much it has run is unknown: nothing of it counts.
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
        """A copy of the text that shares the full pages."""
        self.check_free()
        fork = PagedText(
            self.model,
            self._ledger,
            priority=self._priority,
            thread=self._thread,
            depth=self._depth,
            adapter=self._adapter,
        )
        fork.set_depth(self._depth, self._invocation, self._remaining_us)
        fork.tokens = list(self.tokens)
        fork._span.fork_from(self._span)
        fork._is_plain = self._is_plain
        fork._num_forked = len(self.tokens)
        return fork

    def gained(self) -> list[int]:
        """The tokens after those with which it was forked."""
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
                f"evict up to token {stop} of {len(self.tokens)}: the last token cannot be "
                "evicted, because its next distribution may still be needed"
            )
        self._span.evict(start, stop)
        self._is_plain = False

    def forget(self, start: int, stop: int) -> int:
        """See ``Context.forget``."""
        self.check_free()
        if stop >= len(self.tokens):
            raise InvalidArgument(
                f"forget up to token {stop} of {len(self.tokens)}: the last token cannot be "
                "dropped, because its next distribution may still be needed"
            )
        first, num_tokens = self._span.forget(start, stop)
        if num_tokens:
            del self.tokens[first : first + num_tokens]
            self._num_forked -= max(0, min(self._num_forked - first, num_tokens))
            self._is_plain = False
        return num_tokens

    async def export(self, name: str, ttl_s: float | None, *, replace: bool) -> int:
        """See ``Context.export``."""
        if self._span.has_gaps:
            raise InvalidArgument("tokens of this context were evicted: export before that")
        await self.prefill(max(len(self.tokens) - 1, 0))
        span, allocate = self._span, AllocateFunctions(self.model.issuer)
        if replace and any(
            one.name == name for one in await allocate.list_exports(self.queue, name)
        ):
            await allocate.release_export(self.queue, name)
        await allocate.export_kvpage(
            span.ordered(), span.written, name, ttl_s=ttl_s, tokens=self.tokens
        )
        return span.num_run

    async def adopt(self, name: str, tokens: Sequence[int] | None) -> None:
        """Start with the pages of export ``name``, and with ``tokens``: by default those that the
        exporter gave.

        Raises:
            UnknownHandle: no such export.
            InvalidArgument: there are no tokens, or fewer than in the pages.
        """
        imported = await AllocateFunctions(self.model.issuer).import_text(self.queue, name)
        self._span.adopt(imported.pages)
        self._is_plain = False
        given = imported.tokens if tokens is None else tokens
        if given is None:
            raise InvalidArgument(
                f"export {name!r} was made without tokens: pass the exporter's tokens"
            )
        if self._span.num_run > len(given):
            raise InvalidArgument(
                f"export {name!r} holds {self._span.num_run} tokens, {len(given)} were given: "
                "pass the exporter's tokens"
            )
        self.tokens += given

    def drop(self) -> None:
        """Free the pages and cancel what is running. Idempotent; the text cannot be used
        afterwards."""
        if self._dropped:
            return
        self._dropped = True
        if self._running is not None:
            self._running.cancel()
        self._stepper.drop()
        self._span.drop()
