"""A program of several files: finds the terms of a text and has the model explain them.

quire run examples/glossary -- "A page holds the KV cache. A workflow is a graph."
quire push examples/glossary && quire run glossary --url http://127.0.0.1:8000 -- "..."
"""

from __future__ import annotations

import asyncio

from answers import explain
from terms.finding import find_terms

from quire.programs.api import Api
from quire.programs.sdk import inferlet


@inferlet("glossary", traits={"Decode": 1, "Tokenize": 1})
async def glossary(api: Api, text: str, num_terms: int = 3) -> dict[str, str]:
    """Explain the terms of a text, side by side."""
    terms = find_terms(text)[:num_terms]
    told = await asyncio.gather(*(explain(api, term) for term in terms))
    return dict(zip(terms, told, strict=True))
