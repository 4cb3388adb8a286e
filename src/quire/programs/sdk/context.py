"""``Context``: a text that grows, with its pages handled for it.

::

    ctx = Context(model)
    ctx.fill("Hello,")
    await ctx.generate_until(max_tokens=10)

Owns a queue, the tokens and which of them stand in pages. Filling costs nothing until something is
generated; pages that the prefix index has are reused by themselves. Forks share full pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from quire.core.decoding import Dist, GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord, InvalidArgument, PromptTooLong
from quire.programs.api import Api, Model
from quire.programs.api.allocate import Allocate
from quire.programs.api.core import Core
from quire.programs.api.decode import Decode
from quire.programs.api.tokenize import Tokenize
from quire.programs.chat.detokenize import TextStream
from quire.programs.chat.template import chat_template
from quire.programs.sdk.generation import Generation
from quire.programs.sdk.ledger import PageLedger
from quire.programs.sdk.page_span import PageSpan, Sees
from quire.programs.sdk.samplers import greedy
from quire.programs.sdk.stepping import ScoredStep, Stepper

GREEDY = greedy()


class Context:
    """See the module docstring. ``model`` may be an ``Api`` too: its default model. ``adapter``:
    the LoRA adapter of the model that everything here is computed with.

    ``drop`` it, or use ``async with``, to give its pages back before the program ends.
    """

    def __init__(
        self,
        model: Model | Api,
        *,
        priority: int = 0,
        thread: int = 0,
        adapter: str | None = None,
    ) -> None:
        if isinstance(model, Api):
            model = model.available_models()[0]
        self._begin(model, PageLedger(model.issuer), priority, thread, adapter)

    def _begin(
        self, model: Model, ledger: PageLedger, priority: int, thread: int, adapter: str | None
    ) -> None:
        self.model = model
        self._adapter = adapter
        self._ledger = ledger
        self._priority, self._thread = priority, thread
        self._tokenize = Tokenize(model.issuer)
        queue = Core(model.issuer).create_queue(model, priority=priority, thread=thread)
        self._span = PageSpan(model, queue, ledger)
        self._stepper = Stepper(model, self._span, adapter)
        self._tokens: list[int] = []
        self._running: Generation | None = None
        self._num_forked = 0
        self._dropped = False

    # -- text --------------------------------------------------------------------------------------

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens, filled and generated."""
        return tuple(self._tokens)

    @property
    def text(self) -> str:
        return self._tokenize.detokenize(self._span.queue, self._tokens)

    @property
    def num_pages(self) -> int:
        """Pages that it holds now, those that it shares with its forks included."""
        return self._span.num_pages

    def __len__(self) -> int:
        return len(self._tokens)

    def fill(self, text: str | Sequence[int]) -> Self:
        """Append text or token ids. They are computed with the next generation."""
        self._check_free()
        if isinstance(text, str):
            text = self._tokenize.tokenize(self._span.queue, text)
        self._tokens += text
        return self

    def fill_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Self:
        """Append a conversation in the model's own format, ready for the assistant's turn."""
        template = chat_template(self.model.served)
        return self.fill(template.render(messages, tools=tools, variables=variables))

    # -- generating --------------------------------------------------------------------------------

    def generate(
        self,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        sampler: SamplerSpec = GREEDY,
        grammar: GrammarSpec | None = None,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        num_logprobs: int | None = None,
    ) -> Generation:
        """Go on with the text; it runs at once, so several contexts generate side by side.

        ``max_tokens``: at most, and by default, as many as the model can hold. ``stop``: strings
        that end it; they stay in the context and are left out of the text that is returned.

        Raises:
            InvalidArgument: nothing to go on from, or a generation is running.
            PromptTooLong: no room is left in the model's context.
        """
        self._check_free()
        stops = [stop] if isinstance(stop, str) else list(stop)
        num_tokens = self._room(max_tokens)
        ends = () if ignore_eos else self.model.eos_token_ids
        spec = StopSpec(
            max_tokens=num_tokens,
            token_ids=tuple(dict.fromkeys((*ends, *stop_token_ids))),
            strings=tuple(text.encode() for text in stops),
        )
        if self._span.num_run == len(self._tokens):  # run the last one again for its distribution
            self._span.rewind(len(self._tokens) - 1)
        stream = TextStream(self.model.tokenizer, stop=stops)
        return self._decode(spec, sampler, grammar, num_logprobs, stream)

    async def generate_until(
        self, *, max_tokens: int | None = None, stop: str | Sequence[str] = (), **options: Any
    ) -> str:
        """Generate and return the text; options as in ``generate``."""
        generated = await self.generate(max_tokens=max_tokens, stop=stop, **options)
        return generated.text

    async def prefill(self, *, num_tokens: int | None = None) -> None:
        """Compute what has been filled now: ``num_tokens``, by default all but the last."""
        self._check_free()
        if num_tokens is None:
            num_tokens = len(self._tokens) - 1
        if num_tokens > self._span.num_run:
            silent = TextStream(self.model.tokenizer)
            await self._decode(StopSpec(0), GREEDY, None, None, silent, num_tokens)

    # -- one step at a time ------------------------------------------------------------------------

    async def next_dist(self, *, top_k: int = 256, sees: Sees | None = None) -> Dist:
        """The distribution of the next token; what was filled is computed for it.

        The program chooses: ``ctx.fill([dist.max_index()])``, and so on. ``sees(query, key)`` says
        whether the token at position ``query`` sees the one at ``key`` before it (default: it
        does); it is asked for tokens that are computed now, and not for those that were evicted.
        """
        return (await self.next_dists(1, top_k=top_k, sees=sees))[0]

    async def next_dists(
        self, num: int, *, top_k: int = 256, sees: Sees | None = None
    ) -> list[Dist]:
        """The distributions behind each of the last ``num`` tokens, from one forward pass.

        So a program checks tokens that it has guessed: ``fill`` them, look, ``truncate``.

        Raises:
            InvalidArgument: the context has fewer tokens, or is generating.
            PromptTooLong: no room is left in the model's context.
        """
        await self._before_last(num, sees)
        return await self._stepper.dists(self._tokens[-num:], top_k, sees)

    async def next_dists_scored(self, num: int, *, top_k: int = 256) -> ScoredStep:
        """``next_dists``, and how much the ``num`` tokens attended to each page of the text.

        Raises:
            TraitMissing: the model does not tell attention scores.
        """
        await self._before_last(num, None)
        return await self._stepper.scored(self._tokens[-num:], top_k)

    async def _before_last(self, num: int, sees: Sees | None) -> None:
        """Have all tokens computed but the last ``num``."""
        self._check_free()
        self._room(None)
        first = len(self._tokens) - num
        if num < 1 or first < 0:
            raise InvalidArgument(
                f"distributions behind {num} tokens of {len(self._tokens)}: ask for at least one, "
                "and at most as many as there are"
            )
        if first < self._span.num_run:
            self._span.rewind(first)
        elif sees is None and not self._span.has_gaps and first > self._span.num_run:
            await self.prefill(num_tokens=first)  # it may be in the prefix index
        await self._stepper.run(self._tokens[self._span.num_run : first], sees)

    def evict(self, start: int, stop: int) -> None:
        """No later token sees the tokens ``start`` to ``stop``; they stay in the text.

        Pages of which nothing is seen any more are given back at once; positions stay as they are.
        A fork still sees what it saw. There is no way back but to ``truncate`` before them.

        Raises:
            InvalidArgument: tokens that are not there, or not computed yet, or the last one.
        """
        self._check_free()
        if stop >= len(self._tokens):
            raise InvalidArgument(
                f"evict up to token {stop} of {len(self._tokens)}: never the last, whose "
                "distribution may be asked for again"
            )
        self._span.evict(start, stop)

    def _decode(
        self,
        stop: StopSpec,
        sampler: SamplerSpec,
        grammar: GrammarSpec | None,
        num_logprobs: int | None,
        text: TextStream,
        end: int | None = None,
    ) -> Generation:
        """Run the tokens up to ``end`` that are not in pages, then sample."""
        span, start = self._span, self._span.num_run
        end = len(self._tokens) if end is None else end
        span.ensure(end + max(stop.max_tokens - 1, 0))
        stream = Decode(self.model.issuer).decode(
            span.ordered(),
            span.written,
            self._tokens[start:end],
            span.writable,
            position=start,
            sampler=sampler,
            stop=stop,
            grammar=grammar,
            num_logprobs=num_logprobs,
            history=self._tokens[:start] or None,
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
        self._tokens += token_ids
        if token_ids:
            end += len(token_ids) - 1
        elif error is not None:
            end = start
        if error is None or error.code == "program_cancelled":
            self._span.rewind(end)

    # -- shape -------------------------------------------------------------------------------------

    def fork(self) -> Context:
        """A context with the same text that goes its own way; full pages are shared.

        What was filled and not computed yet is computed by each: ``await prefill()`` first to have
        it computed once.
        """
        self._check_free()
        child = Context.__new__(Context)
        child._begin(self.model, self._ledger, self._priority, self._thread, self._adapter)
        child._tokens = list(self._tokens)
        child._span.fork_from(self._span)
        child._num_forked = len(self._tokens)
        return child

    def join(self, *children: Context) -> Self:
        """Append what each child has gained since its fork, in order, and drop the children.

        An end token that closes a child's text is left out: the joined text goes on.
        """
        self._check_free()
        for child in children:
            child._check_free()
            gained = child._tokens[child._num_forked :]
            if gained and gained[-1] in self.model.eos_token_ids:
                gained.pop()
            self._tokens += gained
            child.drop()
        return self

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens from ``num_tokens`` on."""
        self._check_free()
        if not 0 <= num_tokens <= len(self._tokens):
            raise InvalidArgument(
                f"truncate to {num_tokens} tokens, the context has {len(self._tokens)}"
            )
        if self._span.num_run > num_tokens:
            self._span.rewind(num_tokens)
        del self._tokens[num_tokens:]

    async def export(self, name: str, *, ttl_s: float | None = 600.0) -> int:
        """Publish the pages to other programs of the tenant; the number of tokens in them.

        An importer needs the tokens too (``Context.from_export``): pages do not tell them.

        Raises:
            InvalidArgument: something was evicted.
        """
        if self._span.has_gaps:
            raise InvalidArgument("tokens of this context were evicted: export before that")
        await self.prefill()
        span = self._span
        await Allocate(self.model.issuer).export_kvpage(
            span.ordered(), span.written, name, ttl_s=ttl_s
        )
        return span.num_run

    @classmethod
    async def from_export(
        cls, model: Model | Api, name: str, tokens: Sequence[int], *, adapter: str | None = None
    ) -> Context:
        """A context over exported pages. ``tokens``: those in the pages, and any that follow.
        ``adapter``: what follows is computed with it; the pages stay as their exporter wrote them.

        Raises:
            UnknownHandle: no such export.
            InvalidArgument: the pages hold more tokens than were given.
        """
        ctx = cls(model, adapter=adapter)
        span = ctx._span
        span.adopt(await Allocate(ctx.model.issuer).import_kvpage(span.queue, name))
        if span.num_run > len(tokens):
            num_run = span.num_run
            ctx.drop()
            raise InvalidArgument(
                f"export {name!r} holds {num_run} tokens, {len(tokens)} were given: pass the "
                "tokens that the exporter had"
            )
        ctx._tokens = list(tokens)
        return ctx

    def drop(self) -> None:
        """Give the pages back and end what runs. Idempotent; nothing can follow."""
        if self._dropped:
            return
        self._dropped = True
        if self._running is not None:
            self._running.cancel()
        self._stepper.drop()
        self._span.drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop()

    def _check_free(self) -> None:
        if self._dropped:
            raise InvalidArgument("this context has been dropped: make a new one")
        if self._running is not None:
            raise InvalidArgument(
                "this context is generating: await that first, or fork before it begins"
            )

    def _room(self, max_tokens: int | None) -> int:
        if not self._tokens:
            raise InvalidArgument("the context is empty: fill it before generating")
        limit = self.model.max_tokens
        free = limit - len(self._tokens)
        if free < 1:
            raise PromptTooLong(
                f"the context has {len(self._tokens)} tokens, model {self.model.id!r} can hold "
                f"{limit}: truncate it",
                num_tokens=len(self._tokens),
                max_model_len=limit,
            )
        return free if max_tokens is None else min(max_tokens, free)


__all__ = ["Context"]
