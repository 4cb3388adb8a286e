"""Naive RAG: answer a question from documents that come with it (Ayo's Figure 2c).

::

    documents ─► chunk ─► embed ─► ingest ┐
    question ─► embed_question ───────────┴─► search ─► answer

Chunks have 256 tokens and share 30; the three nearest are read. ``answer.synthesis`` is ``tree``
(each is read on its own, then the answers are combined), ``one_shot`` (read together) or
``refine``.
"""

from __future__ import annotations

from quire.programs.workflow.applications.parts import (
    SYNTHESIS,
    index_nodes,
    question_node,
    rag_engines,
    synthesis_node,
)
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.node import Node


def naive_rag() -> App:
    app = App("naive-rag", rag_engines(), "Answer a question from the nearest chunks of documents.")
    chunk, embed, ingest = index_nodes()
    asked = question_node()
    search = Node(
        "vectors", {"wanted": "vectors"}, {"context": "texts"}, None,
        {"operation": "search", "top_k": 3}, name="search",
    )  # fmt: skip
    answer = synthesis_node("tree", SYNTHESIS)
    chunk >> embed >> ingest >> asked >> search >> answer
    app.update_template([chunk, embed, ingest, asked, search, answer])
    return app
