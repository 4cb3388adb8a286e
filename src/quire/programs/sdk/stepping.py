"""Steps of a context whose results its program reads: tokens in, one forward pass, distributions
out.

Owns the embeds of the tokens. The span owns the pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire.core.decoding import Dist
from quire.core.errors import InvalidArgument
from quire.programs.api import Embed, Model, Queue
from quire.programs.api.adapter import AdapterFunctions
from quire.programs.api.allocate import AllocateFunctions
from quire.programs.api.forward import ForwardFunctions
from quire.programs.api.input_text import InputTextFunctions
from quire.programs.api.output_text import OutputTextFunctions
from quire.programs.api.reply import Reply
from quire.programs.api.scores import AttentionScores, ScoresFunctions
from quire.programs.sdk.page_span import PageSpan, Sees

MAX_STEP_TOKENS = 64
"""The most tokens of one command. The bound keeps masks small and lets other programs' commands run
in between."""


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """The distributions after the tokens of a step, and their attention scores.

    ``masses``: by index of the page in the text, the attention probability that all tokens of the
    step gave to the page's tokens, averaged over query heads and layers.
    """

    dists: list[Dist]
    masses: Mapping[int, float]


class Stepper:
    """Runs the steps of one context. Its commands go to the queue of the span, in order."""

    def __init__(self, model: Model, span: PageSpan, adapter: str | None) -> None:
        issuer = model.issuer
        self._span = span
        self._adapter = adapter
        self._allocate, self._input = AllocateFunctions(issuer), InputTextFunctions(issuer)
        self._output = OutputTextFunctions(issuer)
        self._forward: Callable[..., Reply[Any]] = ForwardFunctions(issuer).forward
        if adapter is not None:
            self._forward = partial(_forward_with, AdapterFunctions(issuer), adapter)
        self._forward_with_scores = ScoresFunctions(issuer).forward_with_scores
        self._embeds: list[Embed] = []

    async def run(self, tokens: Sequence[int], sees: Sees | None) -> None:
        """Append the K and V of ``tokens`` to the pages, in commands of ``MAX_STEP_TOKENS``."""
        for start in range(0, len(tokens), MAX_STEP_TOKENS):
            piece = tokens[start : start + MAX_STEP_TOKENS]
            await self._run(piece, (), self._forward, self._mask(piece, sees))

    async def dists(self, tokens: Sequence[int], top_k: int, sees: Sees | None) -> list[Dist]:
        """Append ``tokens`` in one forward pass; return the distribution after each of them."""
        outputs = self._embeds_for(len(tokens))
        self._run(tokens, outputs, self._forward, self._mask(tokens, sees))
        return await self._output.get_next_dists(self._span.queue, outputs, top_k=top_k)

    async def scored(self, tokens: Sequence[int], top_k: int) -> ScoredStep:
        """``dists``, and the attention that the tokens gave to every page."""
        if self._adapter is not None:
            raise InvalidArgument(
                f"attention scores with adapter {self._adapter!r}: make the context on the "
                "adapter's own model name instead"
            )
        start, pages = self._span.num_run, self._span.written_places
        outputs = self._embeds_for(len(tokens))
        computed = self._run(tokens, outputs, self._forward_with_scores, None)
        dists = self._output.get_next_dists(self._span.queue, outputs, top_k=top_k)
        return ScoredStep(await dists, self._by_page(await computed, pages, start))

    def _by_page(
        self, scores: AttentionScores, pages: Sequence[int], start: int
    ) -> Mapping[int, float]:
        """The masses of earlier pages, plus those of the step's own tokens from position ``start``
        on."""
        masses = Counter(dict(zip(pages, scores.by_page(), strict=True)))
        for offset, shares in enumerate(zip(*scores.inputs, strict=True)):
            masses[(start + offset) // self._span.page_size] += sum(shares) / len(shares)
        return masses

    def drop(self) -> None:
        """Free the embeds, after all commands that use them."""
        embeds, self._embeds = self._embeds, []
        if embeds:
            self._allocate.dealloc_emb(self._span.queue, embeds)

    def _mask(self, tokens: Sequence[int], sees: Sees | None) -> list[list[bool]] | None:
        return None if sees is None else self._span.mask(len(tokens), sees)

    def _run(
        self,
        tokens: Sequence[int],
        outputs: Sequence[Embed],
        forward: Callable[..., Reply[Any]],
        mask: list[list[bool]] | None,
    ) -> Reply[Any]:
        span, start = self._span, self._span.num_run
        embeds = self._embeds_for(len(tokens))
        span.ensure(start + len(tokens))
        self._input.embed_txt(span.queue, tokens, range(start, start + len(tokens)), embeds)
        computed = forward(span.ordered(), span.written, embeds, span.writable, outputs, mask)
        span.issued(computed)
        span.num_run += len(tokens)
        return computed

    def _embeds_for(self, num_tokens: int) -> list[Embed]:
        missing = num_tokens - len(self._embeds)
        if missing > 0:
            self._embeds += self._allocate.alloc_emb(self._span.queue, missing)
        return self._embeds[:num_tokens]


def _forward_with(adapter: AdapterFunctions, name: str, queue: Queue, *pages: Any) -> Reply[None]:
    return adapter.forward_with_adapter(queue, name, *pages)
