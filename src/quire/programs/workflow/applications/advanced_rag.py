"""Advanced RAG: search with several queries, rank what was found, refine the answer (Ayo's Figures
2d and 6).

::

    documents ─► chunk ─► embed ─► ingest ────────┐
    question ─► expand ─► embed_queries ──────────┴─► search ─► rank ─► answer

The model writes three queries, each finds 16 chunks, a cross-encoder chooses three, and the answer
is refined with one chunk after the other. The node needs an embedding model and a cross-encoder.
"""

from __future__ import annotations

from quire.programs.workflow.applications.parts import (
    SYNTHESIS,
    index_nodes,
    rag_engines,
    rank_node,
    synthesis_node,
)
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.node import Node

NUM_QUERIES = 3


def advanced_rag() -> App:
    app = App(
        "advanced-rag",
        rag_engines(),
        "Answer a question with several queries, a ranking and a refined answer.",
    )
    chunk, embed, ingest = index_nodes()
    schema = {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 200},
        "minItems": NUM_QUERIES,
        "maxItems": NUM_QUERIES,
    }
    expand = Node(
        "llm", {"question": "text"}, {"queries": "texts"}, "splittable",
        {
            "prompt": f"Write {NUM_QUERIES} search queries for: {{question}}",
            "schema": schema, "max_tokens": 256,
        },
        name="expand",
    )  # fmt: skip
    asked = Node(
        "embedding", {"queries": "texts"}, {"wanted": "vectors"}, "batchable", {"truncate": True},
        name="embed_queries",
    )  # fmt: skip
    search = Node(
        "vectors", {"wanted": "vectors"}, {"found": "texts"}, "batchable",
        {"operation": "search", "top_k": 16}, name="search",
    )  # fmt: skip
    rank = rank_node()
    answer = synthesis_node("refine", SYNTHESIS)
    chunk >> embed >> ingest >> expand >> asked >> search >> rank >> answer
    app.update_template([chunk, embed, ingest, expand, asked, search, rank, answer])
    return app
