"""What calls of models have in common, wherever the model is: the text of a prompt, and answers
that are told while they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.programs.workflow.answer_text import Said
from quire.programs.workflow.primitives import Primitive
from quire.programs.workflow.watching import Watcher


@dataclass(frozen=True, slots=True)
class Streamed:
    """The primitives whose answers are results, with the names of these, and who is told their text
    as it comes."""

    outputs: Mapping[str, str]
    watcher: Watcher


async def tell(watcher: Watcher, output: str, said: Said | None) -> None:
    if said is not None:
        await watcher.said(output, said)


def prompt_text(primitive: Primitive, inputs: Mapping[str, Any]) -> str:
    """What a prefilling adds to its prompt, or the prompt of a whole call."""
    separator: str = primitive.config["separator"]
    values = (part.text if part.name is None else inputs[part.name] for part in primitive.parts)
    return "".join(one if isinstance(one, str) else separator.join(one) for one in values)
