"""Templates that several tests use."""

from __future__ import annotations

from typing import Any

from quire.programs.workflow import App, Engine, Node, Profile

SCHEMA: dict[str, Any] = {
    "type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3
}  # fmt: skip
DOCUMENTS = [{"name": "a.md", "text": " ".join(f"word{n}" for n in range(400))}]
QUERY = {"question": "Who?", "documents": DOCUMENTS}


def engines(max_batch: int | None = 4) -> list[Engine]:
    return [
        Engine("llm"),
        Engine("embedding", profile=Profile(max_batch)),
        Engine("vectors"),
        Engine("chunker"),
        Engine("rerank"),
    ]


def advanced(**answer: Any) -> App:
    """Ayo's Figure 2d with small chunks: 20 chunks, three queries, six chunks each, three read."""
    app = App("advanced", engines())
    chunk = Node(
        "chunker", {"documents": "documents"}, {"chunks": "texts"},
        config={"chunk_size": 20, "overlap": 0}, name="chunk",
    )  # fmt: skip
    embed = Node(
        "embedding", {"chunks": "texts"}, {"vectors": "vectors"}, "batchable", name="embed"
    )
    ingest = Node(
        "vectors", {"chunks": "texts", "vectors": "vectors"}, {"stored": "done"}, "batchable",
        {"operation": "ingest"}, name="ingest",
    )  # fmt: skip
    expand = Node(
        "llm", {"question": "text"}, {"queries": "texts"}, "splittable",
        {"prompt": "Write three queries for: {question}", "schema": SCHEMA}, name="expand",
    )  # fmt: skip
    embed_queries = Node(
        "embedding", {"queries": "texts"}, {"wanted": "vectors"}, "batchable", name="embed_queries"
    )
    search = Node(
        "vectors", {"wanted": "vectors"}, {"found": "texts"}, "batchable",
        {"operation": "search", "top_k": 6}, name="search",
    )  # fmt: skip
    rank = Node(
        "rerank", {"question": "text", "found": "texts"}, {"best": "texts"},
        config={"top_n": 3}, name="rank",
    )  # fmt: skip
    config = {
        "prompt": "Answer the question {question} from: {best}",
        "refine_prompt": "The question is {question}. Read {best}. So far: {answer}",
        "combine_prompt": "These are answers to {question}:\n{answers}",
        "synthesis": "refine",
        **answer,
    }
    synthesis = Node(
        "llm", {"question": "text", "best": "texts"}, {"answer": "text"}, None, config,
        name="answer",
    )  # fmt: skip
    chunk >> embed >> ingest >> expand >> embed_queries >> search >> rank >> synthesis
    nodes = [chunk, embed, ingest, expand, embed_queries, search, rank, synthesis]
    app.update_template(nodes)
    return app
