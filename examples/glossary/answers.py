"""Asks the model."""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.sdk import Context


async def explain(api: Api, term: str) -> str:
    """Return one sentence on ``term``."""
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": f"What is a {term}?"}])
        return await ctx.generate_until(max_tokens=48)
