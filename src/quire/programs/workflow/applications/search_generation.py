"""Search-empowered generation: search only if the model's own answer is not enough (Ayo's Figure
2a).

::

    question ─► proxy ─► judge ─► needs_search ─► search ─┐
        └───────────┴─────────────────────────────────────┴─► answer

A small model (the proxy) answers from its own knowledge and judges whether that is enough. If not,
the node's search engine finds four texts. The core model answers from these texts and the proxy's
answer. Both models are the node's first unless the application or the query names others.
"""

from __future__ import annotations

from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.node import Node

TOP_K = 4


def search_generation(proxy_model: str | None = None, core_model: str | None = None) -> App:
    """The application. ``proxy_model`` and ``core_model``: models of the node; None: its first."""
    app = App(
        "search-generation",
        [
            Engine("llm", {"model": proxy_model}, name="proxy"),
            Engine("llm", {"model": core_model}, name="core"),
            Engine("search"),
        ],
        "Answer a question from what a search finds, if the model's own answer is not enough.",
    )
    proxy = Node(
        "proxy", {"question": "text"}, {"draft": "text"}, None,
        {"prompt": "{question}", "answer_after": "Answer:", "max_tokens": 64}, name="guess",
    )  # fmt: skip
    judge = Node(
        "proxy", {"question": "text", "draft": "text"}, {"kind": "text"}, None,
        {
            "prompt": "Answer so far: {draft}\nClassify as math, search or chat: {question}",
            "answer_after": "Answer:", "max_tokens": 16,
        },
        name="judge",
    )  # fmt: skip
    needs = Node(
        "condition", {"kind": "text"}, {"needs_search": "boolean"}, None, {"equals": "search"},
        name="needs_search",
    )  # fmt: skip
    search = Node(
        "search", {"question": "text"}, {"found": "texts"}, None, {"top_k": TOP_K},
        name="search", when="needs_search",
    )  # fmt: skip
    answer = Node(
        "core", {"question": "text", "draft": "text", "found": "texts"}, {"answer": "text"}, None,
        {
            "prompt": "Answer so far: {draft}\nContext: {found}\nQuestion: {question}",
            "separator": " ", "answer_after": "Answer:", "max_tokens": 128,
        },
        name="answer",
    )  # fmt: skip
    proxy >> judge >> needs >> search >> answer
    app.update_template([proxy, judge, needs, search, answer])
    return app
