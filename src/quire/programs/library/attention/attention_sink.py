"""Attention sinks: a window, and the first tokens permanently (StreamingLLM, Xiao et al., 2024).

    quire run attention_sink -- "The sky is blue. The grass is green. The snow is white.
    The age of Nuru is 55. The age of Lima is 9. The age of Kabo is 31. What is the age of Kabo?" \\
        16 4 20 --compare

Models give much of their attention to the first tokens, whatever their content; a window that drops
them degrades the text. So the first ``num_sinks`` tokens are kept, and the tokens between them and
the window are evicted. In the paper positions are relative to the cache; here K keeps its rotation,
and the model sees the true distances. Traits: Forward, OutputText.

::

    2 sinks, window 3   key   0 1 2 3 4 5 6 7
    query 5                   # # . # # #
    query 7                   # # . . . # # #     pages between go back to the pool
"""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.library.answers import Compare
from quire.programs.library.attention.windowed_attention import windowed_answer
from quire.programs.sdk import inferlet


@inferlet("attention_sink", traits={"OutputText": 1, "Tokenize": 1}, restartable=True)
async def attention_sink(
    api: Api,
    question: str,
    max_tokens: int = 64,
    num_sinks: int = 4,
    window: int = 48,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer greedily with attention to the first and the last tokens only, and count the pages
    that this takes."""
    return await windowed_answer(
        api, question, max_tokens, window=window, num_sinks=num_sinks, compare=compare
    )
