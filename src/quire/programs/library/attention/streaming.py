"""Streaming: a window over sinks that continues past the model's context length (Xiao et al.,
2024).

    quire run streaming -- "What is 4821 + 977?" 3000 4 256

As in StreamingLLM, positions are relative to the cache: when the window is full, its older half is
dropped, and K of the rest is rotated to the positions that have become free after the sinks. So a
text of any length is read and written with the pages of one window, at the cost per token of one
window; ``attention_sink``, whose positions increase, ends at the model's context length. Moved
tokens still contain, in their deeper layers, what they attended to in dropped tokens. Traits:
Reposition, Decode.

::

    window 7, 1 sink   position   0 1 2 3 4 5 6
              full     token      a b c d e f g
                                    . . .           forgotten, their pages go back to the pool
              then     token      a e f g           K of e, f and g was turned by -3
"""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.sdk import Context, StreamingWindow, inferlet


@inferlet("streaming", traits={"Reposition": 1, "Decode": 1, "Tokenize": 1}, restartable=True)
async def streaming(
    api: Api, text: str, max_tokens: int = 256, num_sinks: int = 4, window: int = 128
) -> dict[str, object]:
    """Continue a text for any number of tokens, past the model's context length, and count the
    pages that this takes."""
    async with Context(api) as ctx:
        stream = StreamingWindow(ctx, size=window, num_sinks=num_sinks)
        await stream.read(text)
        tokens = await stream.generate(max_tokens, ignore_eos=True)
        num_tokens = stream.num_forgotten + len(ctx)
        return {
            "text": api.detokenize(tokens, skip_special=True),
            "num_tokens": num_tokens,
            "max_model_len": ctx.model.max_tokens,
            "pages": ctx.num_pages,
            "pages_without_window": -(-num_tokens // ctx.model.page_size),
        }
