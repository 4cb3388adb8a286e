"""Text completion: the shortest program (Pie 4.2, the three-line version).

quire run text_completion -- "Hello," 10
"""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.sdk import Context, inferlet


@inferlet("text_completion")
async def text_completion(api: Api, prompt: str = "Hello,", max_tokens: str = "32") -> str:
    """Continue a prompt, greedily, and stream the text to the client."""
    ctx = Context(api)
    ctx.fill(prompt)
    parts = []
    async for text in ctx.generate(max_tokens=int(max_tokens)):
        parts.append(text)
        await api.send(text)
    return "".join(parts)


__all__ = ["text_completion"]
