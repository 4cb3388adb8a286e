"""A window over sinks that streams past the model's context length (StreamingLLM, Xiao et al.,
2024).

Decides when the oldest part of the window is dropped. ``Context.forget`` drops it and moves the
rest up.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.decoding import SamplerSpec
from quire.core.errors import InvalidArgument
from quire.programs.sdk.context import Context
from quire.programs.sdk.paged_text import GREEDY


class StreamingWindow:
    """Reads and generates any number of tokens with the pages of ``size`` tokens.

    The first ``num_sinks`` tokens of ``ctx``, rounded up to whole pages, are kept. When ``size``
    tokens (by default the model's context length) are in the context, the older half of those after
    the sinks is dropped, and the others move up. So memory and the cost of a token are bounded, a
    token sees the sinks and at least half a window, and each key is rotated once or twice before it
    is dropped. ``num_forgotten``: the number of tokens dropped so far. The program must not change
    ``ctx`` by other means.

    Raises:
        InvalidArgument: the window does not hold two pages after the sinks, or is longer than the
            model's context.
    """

    def __init__(self, ctx: Context, *, size: int | None = None, num_sinks: int = 4) -> None:
        page_size, most = ctx.model.page_size, ctx.model.max_tokens
        self.size = most if size is None else size
        self.first = -(-num_sinks // page_size) * page_size
        self._num_dropped = (self.size - self.first) // 2 // page_size * page_size
        if num_sinks < 0 or self._num_dropped < 1 or self.size > most:
            raise InvalidArgument(
                f"a window of {self.size} tokens over {num_sinks} sinks: choose a size that holds "
                f"the sinks' pages and two more of {page_size} tokens, and at most {most} tokens"
            )
        self.ctx = ctx
        self.num_forgotten = 0

    async def read(self, text: str | Sequence[int]) -> None:
        """Append text or tokens of any length and compute all of them but the last."""
        ctx = self.ctx
        start = len(ctx)
        rest = ctx.fill(text).tokens[start:]
        ctx.truncate(start)
        while rest:
            room = await self._room()
            ctx.fill(rest[:room])
            rest = rest[room:]
            await ctx.prefill()

    async def generate(
        self,
        max_tokens: int,
        *,
        sampler: SamplerSpec = GREEDY,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
    ) -> list[int]:
        """Generate up to ``max_tokens`` tokens, also more than the model's context holds."""
        tokens: list[int] = []
        while len(tokens) < max_tokens:
            generated = await self.ctx.generate(
                max_tokens=min(max_tokens - len(tokens), await self._room()),
                sampler=sampler,
                ignore_eos=ignore_eos,
                stop_token_ids=stop_token_ids,
            )
            tokens += generated.token_ids
            if generated.finish_reason != "length":
                break
        return tokens

    async def _room(self) -> int:
        """The number of tokens that fit now, at least 1."""
        ctx = self.ctx
        while len(ctx) >= self.size:
            await ctx.prefill()
            self.num_forgotten += ctx.forget(self.first, self.first + self._num_dropped)
        return self.size - len(ctx)
