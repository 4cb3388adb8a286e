"""The turns after the prompt in a conversation with a model: its own turns and the results of its
calls.

Owns the configuration ``tools`` and ``turns`` of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.component import NodeShape
from quire.programs.workflow.graphs.prompts import Prompt, PromptPart

TURN_CONFIG = frozenset({"tools", "turns"})
ROLES = ("assistant", "tool", "user")


def check_turns(node: NodeShape) -> None:
    """Raise ``InvalidArgument`` for tools without a name or turns of another form."""
    for key, form in (
        ("tools", '{"type": "function", "function": {"name": ..., "parameters": ...}}'),
        ("turns", '{"role": "assistant", "tool" or "user", "content": text}'),
    ):
        given = node.config.get(key) or []
        known = _is_tool if key == "tools" else _is_turn
        if not isinstance(given, list) or not all(map(known, given)):
            raise InvalidArgument(
                f"{node.name}.{key} is {given!r:.80}: give a list of {form}",
                param=f"{node.name}.{key}",
            )
    if node.config.get("tools") and node.config.get("schema"):
        raise InvalidArgument(
            f"{node.name}: a model that may call tools has no schema: drop one of them",
            param=f"{node.name}.schema",
        )


def turn_prompts(node: str, config: Mapping[str, Any]) -> list[Prompt]:
    """The contents of the turns, as prompts with named parts."""
    turns: list[dict[str, Any]] = config.get("turns") or []
    return [
        Prompt.read(turn["content"], f"{node}.turns")
        if turn["content"]
        else Prompt((PromptPart(),))
        for turn in turns
    ]


def turn_parts(prompts: list[Prompt]) -> list[PromptPart]:
    """The parts of the turns, each with the number of its turn; the first after the prompt is 1."""
    return [
        replace(part, turn=number)
        for number, prompt in enumerate(prompts, 1)
        for part in prompt.parts
    ]


def literal(text: str) -> str:
    """``text`` as a prompt without parts."""
    return text.replace("{", "{{").replace("}", "}}")


def _is_tool(given: Any) -> bool:
    function = given.get("function") if isinstance(given, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _is_turn(given: Any) -> bool:
    is_message = isinstance(given, Mapping) and given.get("role") in ROLES
    return is_message and isinstance(given.get("content"), str)
