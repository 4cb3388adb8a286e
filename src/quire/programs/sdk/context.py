"""``Context``: a text that grows, with its pages handled for it.

::

    ctx = Context(model)
    ctx.fill("Hello,")
    await ctx.generate_until(max_tokens=10)

Owns what a program says to it: strings, chats, stops, limits. The tokens and pages are those of a
``PagedText``. Filling costs nothing until something is generated; pages that the prefix index has
are reused by themselves. Forks share full pages.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Self

from quire.core.decoding import Dist, GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import InvalidArgument
from quire.programs.api import Api, Model
from quire.programs.api.integers import whole_number
from quire.programs.api.tokenize import Tokenize
from quire.programs.chat.detokenize import TextStream
from quire.programs.chat.messages import as_messages
from quire.programs.chat.template import chat_template
from quire.programs.sdk.generation import Generation
from quire.programs.sdk.page_span import Sees
from quire.programs.sdk.paged_text import GREEDY, PagedText
from quire.programs.sdk.stepping import ScoredStep


class Context:
    """See the module docstring. ``model`` may be an ``Api`` too: its default model. ``adapter``:
    the LoRA adapter of the model that everything here is computed with.

    ``drop`` it, or use ``async with``, to give its pages back before the program ends. One thing
    happens to it at a time: tasks side by side take a ``fork`` each. After a failure that you have
    caught it can be used again: the text is kept, and computed anew with what comes next.
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
            model = Model(model.issuer, model.issuer.model())
        self._paged = PagedText(model, priority=priority, thread=thread, adapter=adapter)

    @classmethod
    def _of(cls, paged: PagedText) -> Context:
        context = cls.__new__(cls)
        context._paged = paged
        return context

    # -- text --------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """What it is computed with."""
        return self._paged.model

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens, filled and generated."""
        return tuple(self._paged.tokens)

    @property
    def text(self) -> str:
        """All tokens as text, special ones spelled out; also of a context that was dropped."""
        return self.model.tokenizer.decode(self._paged.tokens)

    @property
    def num_pages(self) -> int:
        """Pages that it holds now, those that it shares with its forks included."""
        return self._paged.num_pages

    @property
    def num_shared_pages(self) -> int:
        """Of ``num_pages``, those that a context it was forked from, or a fork, holds too."""
        return self._paged.num_shared_pages

    @property
    def num_own_pages(self) -> int:
        """Of ``num_pages``, those that no other context of its family of forks holds."""
        return self.num_pages - self.num_shared_pages

    @property
    def generating(self) -> bool:
        """Whether a generation is under way; until it ends nothing else can be done here."""
        return self._paged.running

    def __len__(self) -> int:
        return len(self._paged.tokens)

    def fill(self, text: str | Sequence[int]) -> Self:
        """Append text or token ids. They are computed with the next generation.

        Raises:
            InvalidArgument: neither text nor token ids of the model, or something is running.
        """
        self._paged.check_free()
        if isinstance(text, str):
            text = Tokenize(self.model.issuer).tokenize(self._paged.queue, text)
        self._paged.tokens += _token_ids(text, self.model.served.info.vocab_size)
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
    ) -> Generation:
        """Go on with the text; it runs at once, so several contexts generate side by side.

        ``max_tokens``: at most, and by default, as many as the model can hold. ``stop``: strings
        that end it; they stay in the context and are left out of the text that is returned, as
        special tokens are but for those in ``shown``.

        Raises:
            InvalidArgument: nothing to go on from, a number that is none, or a generation is
                running.
            PromptTooLong: no room is left in the model's context.
        """
        paged = self._paged
        paged.check_free()
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
        stream = TextStream(self.model.tokenizer, stop=stops, shown=shown)
        return paged.generate(spec, sampler, grammar, num_logprobs, stream)

    async def generate_until(
        self, *, max_tokens: int | None = None, stop: str | Sequence[str] = (), **options: Any
    ) -> str:
        """Generate and return the text; options as in ``generate``."""
        generated = await self.generate(max_tokens=max_tokens, stop=stop, **options)
        return generated.text

    async def prefill(self, *, num_tokens: int | None = None) -> None:
        """Compute what has been filled now: ``num_tokens``, by default all but the last."""
        if num_tokens is None:
            num_tokens = max(len(self) - 1, 0)
        await self._paged.prefill(whole_number("num_tokens", num_tokens))

    # -- one step at a time ------------------------------------------------------------------------

    async def next_dist(self, *, top_k: int = 256, sees: Sees | None = None) -> Dist:
        """The distribution of the next token; what was filled is computed for it: by a decode of no
        tokens, which finds it in the prefix cache, or by ``forward`` under ``sees``.

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
        return await self._paged.dists(whole_number("num", num), top_k, sees)

    async def next_dists_scored(self, num: int, *, top_k: int = 256) -> ScoredStep:
        """``next_dists``, and how much the ``num`` tokens attended to each page of the text.

        Raises:
            TraitMissing: the model does not tell attention scores.
        """
        return await self._paged.scored(whole_number("num", num), top_k)

    def evict(self, start: int, stop: int) -> None:
        """No later token sees the tokens ``start`` to ``stop``; they stay in the text.

        Pages of which nothing is seen any more are given back at once; positions stay as they are.
        A fork still sees what it saw. There is no way back but to ``truncate`` before them.

        Raises:
            InvalidArgument: tokens that are not there, or not computed yet, or the last one.
        """
        self._paged.evict(whole_number("start", start), whole_number("stop", stop))

    def forget(self, start: int, stop: int) -> int:
        """Drop the whole pages between the tokens ``start`` and ``stop``, text and all; what stands
        behind moves up in their place. Returns how many tokens that were.

        So there is room again in the model's context. Unlike ``evict`` it moves positions: K of
        what moves is turned to them. Its deeper layers keep what they saw of the dropped tokens,
        and in bfloat16 each turn rounds anew: drop much at a time. A fork keeps what it had.

        Raises:
            InvalidArgument: tokens that are not there, or not computed yet, or the last one.
            TraitMissing: the model cannot take pages to other positions (trait Reposition).
        """
        return self._paged.forget(whole_number("start", start), whole_number("stop", stop))

    # -- shape -------------------------------------------------------------------------------------

    def fork(self) -> Context:
        """A context with the same text that goes its own way; full pages are shared.

        What was filled and not computed yet is computed by each: ``await prefill()`` first to have
        it computed once.
        """
        return Context._of(self._paged.fork())

    def join(self, *children: Context) -> Self:
        """Append what each child has gained since its fork, in order, and drop the children.

        An end token that closes a child's text is left out: the joined text goes on.

        Raises:
            InvalidArgument: something is running, or it would join itself.
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
        """Forget the tokens from ``num_tokens`` on."""
        self._paged.truncate(whole_number("num_tokens", num_tokens))

    async def export(self, name: str, *, ttl_s: float | None = 600.0) -> int:
        """Publish the pages to other programs of the tenant; the number of tokens in them.

        The text goes with them, so that an importer goes on where this context is.

        Raises:
            InvalidArgument: something was evicted.
        """
        return await self._paged.export(name, ttl_s)

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

        ``tokens``: another text for it, those in the pages and any that follow; needed for pages
        that were exported by hand (``export_kvpage``) without their tokens. ``adapter``: what
        follows is computed with it; the pages stay as their exporter wrote them.

        Raises:
            UnknownHandle: no such export.
            InvalidArgument: the pages hold more tokens than were given, or none were given and the
                export has none.
        """
        ctx = cls(model, adapter=adapter)
        try:
            await ctx._paged.adopt(name, tokens)
        except BaseException:
            ctx.drop()
            raise
        return ctx

    def drop(self) -> None:
        """Give the pages back and end what runs. Idempotent; nothing can follow."""
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
