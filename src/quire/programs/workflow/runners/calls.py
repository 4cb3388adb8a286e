"""Common parts of model calls, local or remote: the text of a prompt, and answers that are reported
while they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.execution.watching import Watcher
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.growing_graph import GrowingGraph
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.prompts import PromptPart
from quire.programs.workflow.graphs.values import ValueType


class StreamedAnswers:
    """``outputs``: the names of the results that are answers, by primitive; ``watcher`` receives
    their text as it comes."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.outputs: Mapping[str, str] = {}

    def follow(self, graph: PrimitiveGraph | GrowingGraph) -> None:
        """Find the answers of ``graph``, which is the query's graph as it is now."""
        outputs: dict[str, str] = {}
        for name, ref in graph.results.items():
            source = graph.primitives.get(ref.primitive)
            if source is None or source.op not in (Op.DECODING, Op.GENERATING):
                continue
            if source.outputs[ref.port] is ValueType.TEXT:
                outputs[source.id] = name
        self.outputs = outputs


async def tell(watcher: Watcher, output: str, said: SaidText | None) -> None:
    if said is not None:
        await watcher.said(output, said)


def prompt_text(primitive: Primitive, inputs: Mapping[str, Any]) -> str:
    """Return the text that a prefilling adds to its prompt, or the prompt of a whole call."""
    return "".join(part_text(primitive, part, inputs) for part in primitive.parts)


def part_text(primitive: Primitive, part: PromptPart, inputs: Mapping[str, Any]) -> str:
    """Return the text of a part of the prompt; a list is joined in the order of the
    configuration."""
    value: str | Sequence[str] = part.text if part.name is None else inputs[part.name]
    if isinstance(value, str):
        return value
    separator: str = primitive.config["separator"]
    return separator.join(reversed(value) if primitive.config["last_first"] else value)
