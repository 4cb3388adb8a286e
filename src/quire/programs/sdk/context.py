"""``Context``: a growing text whose pages are managed automatically.

::

    ctx = Context(model)
    ctx.fill("Hello,")
    await ctx.generate_until(max_tokens=10)

Owns the conversion from strings, chats, stops and limits. A ``PagedText`` has the tokens and pages.
Filled text is computed when something is generated; pages in the prefix index are reused
automatically. Forks share full pages.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Self

from quire.core.decoding import Dist, GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import InvalidArgument
from quire.programs.api import Api, Model
from quire.programs.api.integers import whole_number
from quire.programs.api.specs import check_grammar, check_sampler
from quire.programs.api.tokenize import TokenizeFunctions
from quire.programs.chat.detokenize import TextStream
from quire.programs.chat.messages import as_messages
from quire.programs.chat.template import chat_template
from quire.programs.sdk.generation import Generation
from quire.programs.sdk.page_span import Sees
from quire.programs.sdk.paged_text import GREEDY, PagedText
from quire.programs.sdk.stepping import ScoredStep


class Context:
    """See the module docstring. ``model`` may be an ``Api``, whose default model is used.
    ``priority``, ``thread`` and ``depth``: as of a queue (``create_queue``). ``adapter``: the LoRA
    adapter of the model with which everything is computed.

    Use ``drop`` or ``async with`` to free its pages before the program ends. Only one operation may
    run at a time: concurrent tasks each take a ``fork``. After a failure that the program has
    caught, the context can be used again: its text is kept and recomputed by the next operation.
    """

    def __init__(
        self,
        model: Model | Api,
        *,
        priority: int = 0,
        thread: int = 0,
        depth: int = 0,
        adapter: str | None = None,
    ) -> None:
        if isinstance(model, Api):
            model = Model(model.issuer, model.issuer.model())
        self._paged = PagedText(
            model, priority=priority, thread=thread, depth=depth, adapter=adapter
        )

    @classmethod
    def _of(cls, paged: PagedText) -> Context:
        context = cls.__new__(cls)
        context._paged = paged
        return context

    # -- text --------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The model that computes the text."""
        return self._paged.model

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens, filled and generated."""
        return tuple(self._paged.tokens)

    @property
    def text(self) -> str:
        """All tokens as text, with special tokens spelled out; also available after ``drop``."""
        return self.model.tokenizer.decode(self._paged.tokens)

    @property
    def num_pages(self) -> int:
        """Pages that the context holds now, those shared with forks included."""
        return self._paged.num_pages

    @property
    def num_shared_pages(self) -> int:
        """Pages of ``num_pages`` that another context of its family of forks holds too."""
        return self._paged.num_shared_pages

    @property
    def num_own_pages(self) -> int:
        """Pages of ``num_pages`` that no other context of its family of forks holds."""
        return self.num_pages - self.num_shared_pages

    @property
    def generating(self) -> bool:
        """Whether a generation is running; until it ends no other operation may start."""
        return self._paged.running

    def __len__(self) -> int:
        return len(self._paged.tokens)

    def set_depth(self, depth: int, *, invocation: int = 0, remaining_us: int = 0) -> Self:
        """Set the step of the program's graph for what is computed from now on, and for forks that
        are made from now on; see ``set_queue_depth``.

        Raises:
            InvalidArgument: a value that is not an integer, or an operation is running.
        """
        self._paged.check_free()
        self._paged.set_depth(depth, invocation, remaining_us)
        return self

    def set_priority(self, priority: int) -> Self:
        """Set the priority of what is computed from now on, of what is running, and of forks that
        are made from now on; see ``set_queue_priority``.

        Raises:
            InvalidArgument: it is not an integer.
        """
        self._paged.set_priority(whole_number("priority", priority))
        return self

    def fill(self, text: str | Sequence[int]) -> Self:
        """Append text or token ids. They are computed with the next generation.

        Raises:
            InvalidArgument: neither text nor token ids of the model, or an operation is running.
        """
        self._paged.check_free()
        self._paged.tokens += self._tokenized(text)
        return self

    def _tokenized(self, text: str | Sequence[int]) -> list[int]:
        if isinstance(text, str):
            text = TokenizeFunctions(self.model.issuer).tokenize(self._paged.queue, text)
        return _token_ids(text, self.model.served.info.vocab_size)

    def revise(self, text: str | Sequence[int]) -> Self:
        """Make ``text`` the whole text. Computed tokens at its beginning stay computed.

        A text that is filled in pieces can have other tokens than the whole, because tokens merge
        across the seam. A text that is revised as it grows has the tokens of the whole.

        Raises:
            InvalidArgument: neither text nor token ids of the model, or an operation is running.
        """
        self._paged.check_free()
        before, after = self._paged.tokens, self._tokenized(text)
        same = next(
            (n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]),
            min(len(before), len(after)),
        )
        self._paged.truncate(same)
        self._paged.tokens += after[same:]
        return self

    def fill_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Self:
        """Append a conversation in the model's own chat format, up to the start of the assistant's
        turn."""
        template = chat_template(self.model.served)
        prompt = template.render(as_messages(messages), tools=tools, variables=variables)
        return self.fill(prompt)

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
        shown: Container[int] = (),
        stream: bool = True,
    ) -> Generation:
        """Continue the text. This starts at once, so several contexts can generate concurrently.

        ``max_tokens``: limited to the number that the model can hold, which is the default.
        ``stop``: strings that end the generation; they stay in the context but not in the returned
        text. Special tokens are omitted from that text, too, except those in ``shown``. ``stream``:
        pieces come while it runs; otherwise all at the end, which costs the node less.

        Raises:
            InvalidArgument: the context is empty, an option is of another type, or an operation is
                running.
            PromptTooLong: the model's context is full.
        """
        paged = self._paged
        paged.check_free()
        check_sampler(sampler)
        check_grammar(grammar)
        room = paged.room()
        if max_tokens is not None:
            max_tokens = whole_number("max_tokens", max_tokens)
        stops = _stops(stop)
        ends = () if ignore_eos else self.model.eos_token_ids
        spec = StopSpec(
            max_tokens=room if max_tokens is None else min(max_tokens, room),
            token_ids=tuple(dict.fromkeys((*ends, *stop_token_ids))),
            strings=tuple(text.encode() for text in stops),
        )
        text = TextStream(self.model.tokenizer, stop=stops, shown=shown)
        return paged.generate(spec, sampler, grammar, num_logprobs, text, stream)

    async def generate_until(
        self, *, max_tokens: int | None = None, stop: str | Sequence[str] = (), **options: Any
    ) -> str:
        """Generate and return the text; options as for ``generate``."""
        generated = await self.generate(max_tokens=max_tokens, stop=stop, **options)
        return generated.text

    async def prefill(self, *, num_tokens: int | None = None) -> None:
        """Compute filled tokens now: the first ``num_tokens``, by default all but the last."""
        if num_tokens is None:
            num_tokens = max(len(self) - 1, 0)
        await self._paged.prefill(whole_number("num_tokens", num_tokens))

    # -- one step at a time ------------------------------------------------------------------------

    async def next_dist(self, *, top_k: int = 256, sees: Sees | None = None) -> Dist:
        """The distribution of the next token. Filled tokens are computed first: by a decode without
        output tokens, which uses the prefix index, or by ``forward`` if ``sees`` is given.

        The program chooses the token: ``ctx.fill([dist.max_index()])``, and so on.
        ``sees(query, key)`` decides whether the token at position ``query`` attends to the earlier
        token at ``key`` (default: it does). It is called for tokens that are computed now, but not
        for evicted ones.
        """
        return (await self.next_dists(1, top_k=top_k, sees=sees))[0]

    async def next_dists(
        self, num: int, *, top_k: int = 256, sees: Sees | None = None
    ) -> list[Dist]:
        """The distributions after each of the last ``num`` tokens, from one forward pass.

        With this a program verifies guessed tokens: ``fill`` them, compare, ``truncate``.

        Raises:
            InvalidArgument: the context has fewer tokens, or is generating.
            PromptTooLong: the model's context is full.
        """
        return await self._paged.dists(whole_number("num", num), top_k, sees)

    async def next_dists_scored(self, num: int, *, top_k: int = 256) -> ScoredStep:
        """Like ``next_dists``, with the attention that the ``num`` tokens gave to each page.

        Raises:
            TraitMissing: the model does not have the trait Scores.
        """
        return await self._paged.scored(whole_number("num", num), top_k)

    def evict(self, start: int, stop: int) -> None:
        """Hide the tokens ``start`` to ``stop`` from all later tokens; they stay in the text.

        Pages whose tokens are all hidden are freed at once; positions do not change. Existing forks
        are not affected. Eviction can only be undone by ``truncate`` to a point before the tokens.

        Raises:
            InvalidArgument: tokens that do not exist or are not computed yet, or the last token.
        """
        self._paged.evict(whole_number("start", start), whole_number("stop", stop))

    def forget(self, start: int, stop: int) -> int:
        """Drop the whole pages between the tokens ``start`` and ``stop``, also from the text; later
        tokens move up to their positions. Returns the number of dropped tokens.

        This frees space in the model's context. Unlike ``evict`` it changes positions: K of the
        moved tokens is rotated. Their deeper layers still contain what they attended to in the
        dropped tokens, and in bfloat16 each rotation adds a rounding error: drop many tokens at a
        time. Existing forks are not affected.

        Raises:
            InvalidArgument: tokens that do not exist or are not computed yet, or the last token.
            TraitMissing: the model cannot move pages to other positions (trait Reposition).
        """
        return self._paged.forget(whole_number("start", start), whole_number("stop", stop))

    # -- shape -------------------------------------------------------------------------------------

    def fork(self) -> Context:
        """A copy of the context that continues independently; full pages are shared.

        Filled tokens that are not computed yet are computed by each fork: ``await prefill()`` first
        to compute them once.
        """
        return Context._of(self._paged.fork())

    def join(self, *children: Context) -> Self:
        """Append the tokens that each child has gained since its fork, in order, and drop the
        children.

        An end token at the end of a child's text is left out, because the joined text continues.

        Raises:
            InvalidArgument: an operation is running, a child is given twice, or is the context
                itself.
        """
        paged = self._paged
        paged.check_free()
        for index, child in enumerate(children):
            if child is self or child in children[:index]:
                raise InvalidArgument("join: give each child once, and not the context itself")
            child._paged.check_free()
        for child in children:
            gained = child._paged.gained()
            if gained and gained[-1] in self.model.eos_token_ids:
                gained.pop()
            paged.tokens += gained
            child.drop()
        return self

    def truncate(self, num_tokens: int) -> None:
        """Remove the tokens from ``num_tokens`` on."""
        self._paged.truncate(whole_number("num_tokens", num_tokens))

    async def export(self, name: str, *, ttl_s: float | None = 600.0, replace: bool = False) -> int:
        """Publish the pages to other programs of the tenant. Returns the number of tokens in them.

        The text is exported with the pages, so that an importer can continue it. The export ends
        after ``ttl_s`` seconds without an import; with ``None`` it ends with this program.
        ``replace``: an earlier export of that name is released first.

        Raises:
            InvalidArgument: tokens were evicted, or (without ``replace``) there is an export of
                that name.
        """
        return await self._paged.export(name, ttl_s, replace=replace)

    @classmethod
    async def from_export(
        cls,
        model: Model | Api,
        name: str,
        tokens: Sequence[int] | None = None,
        *,
        adapter: str | None = None,
    ) -> Context:
        """A context over exported pages, with the text that was exported with them.

        ``tokens``: another text, which begins with the tokens in the pages; required for pages that
        were exported by ``export_kvpage`` without tokens. ``adapter``: used for all further tokens;
        the imported pages stay as their exporter computed them.

        Raises:
            UnknownHandle: no such export.
            InvalidArgument: the pages hold more tokens than were given, or no tokens were given and
                the export has none.
        """
        ctx = cls(model, adapter=adapter)
        try:
            await ctx._paged.adopt(name, tokens)
        except BaseException:
            ctx.drop()
            raise
        return ctx

    def drop(self) -> None:
        """Free the pages and cancel what is running. Idempotent; the context cannot be used
        afterwards."""
        self._paged.drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop()


def _stops(given: str | Sequence[str]) -> list[str]:
    stops = [given] if isinstance(given, str | int) else list(given)
    for one in stops:
        if not isinstance(one, str) or (not one and given != ""):
            raise InvalidArgument(
                f"stop is {one!r}: give strings that are not empty (token ids: stop_token_ids)"
            )
    return [one for one in stops if one]


def _token_ids(given: Sequence[int], vocab_size: int) -> list[int]:
    if not isinstance(given, Iterable):
        raise InvalidArgument(f"fill takes a text or a list of token ids, not {given!r}")
    ids = list(given)
    if any(type(one) is not int for one in ids):
        ids = [whole_number("a token id", one) for one in ids]
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(one for one in ids if not 0 <= one < vocab_size)
        raise InvalidArgument(f"token id {wrong}: the vocabulary has {vocab_size}")
    return ids
