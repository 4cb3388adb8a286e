"""Text completion: the shortest program (Pie 4.2, the three-line version).

    quire run text_completion -- "Hello," 10

``fill`` computes nothing yet. ``generate`` runs the filled tokens and continues from there, the
whole loop in one command; its text arrives in pieces, which are sent to the client at once.

::

    [Hello,][         ]     fill: tokens      generate: one Decode, prompt and answer
"""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.sdk import Context, inferlet


@inferlet("text_completion", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def text_completion(api: Api, prompt: str = "Hello,", max_tokens: int = 32) -> str:
    """Continue a prompt, greedily, and stream the text to the client."""
    ctx = Context(api)
    ctx.fill(prompt)
    parts = []
    async for text in ctx.generate(max_tokens=max_tokens):
        parts.append(text)
        await api.send(text)
    return "".join(parts)
