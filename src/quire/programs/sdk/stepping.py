"""Steps of a context that its program looks at: tokens in, one forward pass, distributions out.

Owns the embeds that the tokens pass through. What is in pages is the span's.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.decoding import Dist
from quire.programs.api import Embed, Model
from quire.programs.api.adapter import Adapter
from quire.programs.api.allocate import Allocate
from quire.programs.api.forward import Forward
from quire.programs.api.input_text import InputText
from quire.programs.api.output_text import OutputText
from quire.programs.api.reply import Reply
from quire.programs.sdk.page_span import PageSpan, Sees

MAX_STEP_TOKENS = 64
"""Tokens of one command: what a mask of them covers stays small, and other programs get turns."""


class Stepper:
    """Belongs to one context. Its commands go to the queue of the span, one behind another."""

    def __init__(self, model: Model, span: PageSpan, adapter: str | None) -> None:
        issuer = model.issuer
        self._span = span
        self._adapter = adapter
        self._allocate, self._input = Allocate(issuer), InputText(issuer)
        self._forward, self._output = Forward(issuer), OutputText(issuer)
        self._with_adapter = Adapter(issuer)
        self._embeds: list[Embed] = []
        self._computed: Reply[None]

    async def run(self, tokens: Sequence[int], sees: Sees | None) -> None:
        """Append the K and V of ``tokens`` to the pages, piece by piece."""
        for start in range(0, len(tokens), MAX_STEP_TOKENS):
            self._run(tokens[start : start + MAX_STEP_TOKENS], 0, sees)
            await self._computed

    def dists(self, tokens: Sequence[int], top_k: int, sees: Sees | None) -> Reply[list[Dist]]:
        """Append ``tokens`` in one forward pass; the distribution after each of them."""
        embeds = self._run(tokens, len(tokens), sees)
        return self._output.get_next_dists(self._span.queue, embeds, top_k=top_k)

    def drop(self) -> None:
        """Give the embeds back, behind everything that uses them."""
        embeds, self._embeds = self._embeds, []
        if embeds:
            self._allocate.dealloc_emb(self._span.queue, embeds)

    def _run(self, tokens: Sequence[int], num_outputs: int, sees: Sees | None) -> list[Embed]:
        span, start = self._span, self._span.num_run
        embeds = self._embeds_for(len(tokens))
        outputs = embeds[:num_outputs]
        mask = None if sees is None else span.mask(len(tokens), sees)
        span.ensure(start + len(tokens))
        pages, queue = (span.written, embeds, span.writable, outputs, mask), span.ordered()
        self._input.embed_txt(span.queue, tokens, range(start, start + len(tokens)), embeds)
        if self._adapter is None:
            self._computed = self._forward.forward(queue, *pages)
        else:
            self._computed = self._with_adapter.forward_with_adapter(queue, self._adapter, *pages)
        span.issued(self._computed)
        span.num_run += len(tokens)
        return outputs

    def _embeds_for(self, num_tokens: int) -> list[Embed]:
        missing = num_tokens - len(self._embeds)
        if missing > 0:
            self._embeds += self._allocate.alloc_emb(self._span.queue, missing)
        return self._embeds[:num_tokens]


__all__ = ["MAX_STEP_TOKENS", "Stepper"]
