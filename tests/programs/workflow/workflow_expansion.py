"""An application of a model that expands a question, with the texts that its model answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from workflow_apps import SCHEMA

from quire.programs.workflow import App, Engine, Node, PrimitiveStep, StepLog

QUESTION = "Who is the baker?"


class EachStep(StepLog):
    """Calls ``note`` at the end of each step."""

    def __init__(self, note: Callable[[PrimitiveStep], None]) -> None:
        super().__init__()
        self._note = note

    async def ended(self, step: PrimitiveStep) -> None:
        self._note(step)


def upper(queries: list[str]) -> list[str]:
    return [query.upper() for query in queries]


def expansion(**expand: Any) -> App:
    """A model expands a question, a tool works on each query, and a model reads all."""
    app = App("expansion", [Engine("llm"), Engine("tool", config={"functions": {"upper": upper}})])
    config = {"prompt": "Expand: {question}", "schema": SCHEMA, **expand}
    first = Node(
        "llm", {"question": "text"}, {"queries": "texts"}, "splittable", config, name="expand"
    )
    work = Node(
        "tool", {"queries": "texts"}, {"worked": "texts"}, "batchable",
        {"function": "upper", "pure": True}, name="work",
    )  # fmt: skip
    config = {
        "prompt": "The question is {question} Read {worked}", "separator": ", ",
        "answer_after": "Answer:", "system": "Be short.",
    }  # fmt: skip
    last = Node(
        "llm",
        {"question": "text", "worked": "texts"},
        {"answer": "text"},
        None,
        config,
        name="last",
    )
    first >> work >> last
    app.update_template([first, work, last])
    return app


def answer(prompt: str) -> str:
    if "Expand" in prompt:
        return json.dumps(["a, b", 'c"', "d"]) + "<|end|>"
    return "Thinking.\nAnswer: Kabo.<|end|>"
