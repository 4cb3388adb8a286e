"""Names the paper's applications: the product's templates, with prompts whose instruction and
question stand in front, as in the paper, because both are known early."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from benchmarks.ayo.texts import ANSWER_TOKENS, QUERY_TOKENS, SITUATE_TOKENS, VERDICT_TOKENS
from quire.programs.workflow import App
from quire.programs.workflow.applications import (
    advanced_rag,
    contextual_retrieval,
    naive_rag,
    search_generation,
)

INSTRUCTION = (
    "You are an assistant that answers questions of users from what was found for them. Say what "
    "you know from it and nothing else, in one short sentence and without any introduction; if "
    "nothing fits, say that you do not know it. "
)
"""About 60 tokens."""
NUM_CHUNKS = 48
"""Of the documents of a query (Fig. 4a)."""
_ASKED = INSTRUCTION + "Question: {question}\n"
ANSWER = _ASKED + "Context: {context}"
REFINE = _ASKED + "Context: {context}\nSo far: {answer}"
COMBINE = _ASKED + "Answers:\n{answers}"
EXPAND = INSTRUCTION + "Write 3 search queries for: {question}"
GUESS = _ASKED
JUDGE = _ASKED + "Draft: {draft}"
FROM_FOUND = _ASKED + "Draft: {draft}\nContext: {found}"
SITUATE = INSTRUCTION + "Document: {around}\nChunk: {chunks}"
_ANSWER: dict[str, Any] = {
    "prompt": ANSWER,
    "refine_prompt": REFINE,
    "combine_prompt": COMBINE,
    "max_tokens": ANSWER_TOKENS,
}


@dataclass(frozen=True, slots=True)
class Application:
    """``roles``: of the engines of kind llm; the core model is the one that is varied."""

    name: str
    make: Callable[[], App]
    config: Mapping[str, Mapping[str, Any]]
    roles: Mapping[str, str]
    has_documents: bool = True
    instruction: str = INSTRUCTION

    def instructed(self, instruction: str) -> Application:
        """Return the application with ``instruction`` in front of all prompts."""
        config = {
            node: {
                name: value.replace(INSTRUCTION, instruction) if isinstance(value, str) else value
                for name, value in own.items()
            }
            for node, own in self.config.items()
        }
        return replace(self, config=config, instruction=instruction)

    def query(self, num_chunks: int = NUM_CHUNKS) -> dict[str, Any]:
        """Return a question and a document that the chunker cuts into ``num_chunks`` chunks."""
        if not self.has_documents:
            return {"question": "Who?"}
        text = " ".join(f"w{number}" for number in range(226 * num_chunks))
        return {"question": "Who?", "documents": [{"name": "a", "text": text}]}


MODEL_OF_ROLE: Mapping[str, str] = MappingProxyType({"proxy": "llama-2-7b", "light": "gemma-2-2b"})


def models_of(application: Application, core: str) -> dict[str, str]:
    """Return the model of each role, by the name under which it is served; each has instances of
    its own."""
    return {role: MODEL_OF_ROLE.get(role, core) for role in application.roles.values()}


SEARCH = Application(
    "search",
    search_generation,
    {
        "guess": {"prompt": GUESS, "max_tokens": ANSWER_TOKENS},
        "judge": {"prompt": JUDGE, "max_tokens": VERDICT_TOKENS},
        "answer": {"prompt": FROM_FOUND, "max_tokens": ANSWER_TOKENS},
    },
    {"proxy": "proxy", "core": "core"},
    has_documents=False,
)
NAIVE = Application(
    "naive", naive_rag, {"answer": {**_ANSWER, "synthesis": "tree"}}, {"llm": "core"}
)
ADVANCED = Application(
    "advanced",
    advanced_rag,
    {"answer": _ANSWER, "expand": {"prompt": EXPAND, "max_tokens": 3 * QUERY_TOKENS}},
    {"llm": "core"},
)
CONTEXTUAL = Application(
    "contextual",
    contextual_retrieval,
    {"answer": _ANSWER, "situate": {"prompt": SITUATE, "max_tokens": SITUATE_TOKENS}},
    {"llm": "core", "light": "light"},
)
APPLICATIONS: Mapping[str, Application] = MappingProxyType(
    {one.name: one for one in (SEARCH, NAIVE, ADVANCED, CONTEXTUAL)}
)
