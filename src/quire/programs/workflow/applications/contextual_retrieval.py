"""Contextual retrieval: each chunk gets a sentence about its surroundings before it is indexed
(Anthropic, "Introducing Contextual Retrieval", 2024; the fifth application of Ayo's section 7).

::

    documents ─► chunk ─► situate ─► join ─► embed ─► ingest ┐
    question ─► embed_question ──────────────────────────────┴─► search ─► rank ─► answer

A light model reads each chunk within its four neighbours and writes a sentence about its subject;
the sentence precedes the chunk when it is embedded, ranked and read. 32 chunks are found, a
cross-encoder chooses three, and they are read together.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.programs.workflow.applications.parts import (
    SYNTHESIS,
    question_node,
    rag_engines,
    rank_node,
    stored_nodes,
    synthesis_node,
)
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.node import Node

SITUATE = "Document: {around}\nChunk: {chunks}\nSituate the chunk in the document."


def contextual_retrieval() -> App:
    app = App(
        "contextual-retrieval",
        [
            *rag_engines(),
            Engine("llm", name="light", config={"light": True}),
            Engine("tool", config={"functions": {"before": before}}),
        ],
        "Answer a question from chunks that a light model has put into context.",
    )
    chunk = Node(
        "chunker", {"documents": "documents"}, {"chunks": "texts", "around": "texts"}, None,
        {"chunk_size": 256, "overlap": 30, "neighbours": 4}, name="chunk",
    )  # fmt: skip
    situate = Node(
        "light", {"around": "texts", "chunks": "texts"}, {"contexts": "texts"}, "batchable",
        {"prompt": SITUATE, "answer_after": "Answer:", "max_tokens": 64}, name="situate",
    )  # fmt: skip
    join = Node(
        "tool", {"contexts": "texts", "chunks": "texts"}, {"passages": "texts"}, "batchable",
        {"function": "before", "pure": True}, name="join",
    )  # fmt: skip
    embed, ingest = stored_nodes("passages")
    asked = question_node()
    search = Node(
        "vectors", {"wanted": "vectors"}, {"found": "texts"}, None,
        {"operation": "search", "top_k": 32}, name="search",
    )  # fmt: skip
    rank = rank_node()
    answer = synthesis_node("one_shot", SYNTHESIS)
    chunk >> situate >> join >> embed >> ingest >> asked >> search >> rank >> answer
    app.update_template([chunk, situate, join, embed, ingest, asked, search, rank, answer])
    return app


def before(contexts: Sequence[str], chunks: Sequence[str]) -> list[str]:
    """Each context before its chunk."""
    return [
        f"{context.strip()}\n{chunk}" if context.strip() else chunk
        for context, chunk in zip(contexts, chunks, strict=True)
    ]
