"""Parts that applications share: engines, the index of the query's documents, and synthesis."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quire.programs.workflow.engines.engine import ASSUMED_EMBEDDING, Engine
from quire.programs.workflow.template.node import Node

SYNTHESIS: Mapping[str, str] = MappingProxyType(
    {
        "prompt": "Question: {question}\nContext: {context}\nQuestion: {question}",
        "refine_prompt": "Question: {question}\nContext: {context}\n"
        "Answer so far: {answer}\nRefine the answer.\nQuestion: {question}",
        "combine_prompt": "Combine these answers:\n{answers}\nQuestion: {question}",
        "answer_after": "Answer:",
    }
)
"""Prompts of the form that quire-reader was trained with; any model that follows instructions
understands them. The question comes first, so that its prefill waits for nothing, and again last,
where a small model expects it."""


def rag_engines() -> list[Engine]:
    """Engines for the node's model and encoders, and the query's collection."""
    return [
        Engine("chunker"),
        Engine("embedding", profile=ASSUMED_EMBEDDING),
        Engine("rerank"),
        Engine("vectors"),
        Engine("llm"),
    ]


def index_nodes() -> tuple[Node, Node, Node]:
    """The nodes that cut documents into chunks and store their vectors in the query's
    collection."""
    chunk = Node(
        "chunker", {"documents": "documents"}, {"chunks": "texts"}, None,
        {"chunk_size": 256, "overlap": 30}, name="chunk",
    )  # fmt: skip
    return chunk, *stored_nodes("chunks")


def stored_nodes(texts: str) -> tuple[Node, Node]:
    """The nodes that store vectors of the value ``texts`` in the query's collection."""
    embed = Node(
        "embedding", {texts: "texts"}, {"vectors": "vectors"}, "batchable", {"truncate": True},
        name="embed",
    )  # fmt: skip
    ingest = Node(
        "vectors", {texts: "texts", "vectors": "vectors"}, {"indexed": "done"}, "batchable",
        {"operation": "ingest"}, name="ingest",
    )  # fmt: skip
    return embed, ingest


def question_node() -> Node:
    """The node for the vector of the question."""
    return Node(
        "embedding", {"question": "text"}, {"wanted": "vectors"}, None, {"truncate": True},
        name="embed_question",
    )  # fmt: skip


def rank_node() -> Node:
    """The node that chooses the three texts of ``found`` that fit ``question`` best."""
    return Node(
        "rerank", {"question": "text", "found": "texts"}, {"context": "texts"}, None,
        {"top_n": 3, "truncate": True}, name="rank",
    )  # fmt: skip


def synthesis_node(mode: str, prompts: Mapping[str, str]) -> Node:
    """The node that answers ``question`` from the texts ``context``, the nearest first. Texts that
    are read together stand in the other order: the nearest beside the question behind them, where
    models find it best (Liu et al., "Lost in the Middle", 2023). Texts that refine an answer are
    read in that order too: behind the nearest no other text can overwrite what it says."""
    config = {
        **prompts, "synthesis": mode, "separator": " ", "last_first": True, "max_tokens": 128
    }  # fmt: skip
    return Node(
        "llm", {"question": "text", "context": "texts"}, {"answer": "text"}, None, config,
        name="answer",
    )  # fmt: skip
