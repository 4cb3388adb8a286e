"""The prompts in a component's configuration, checked against its inputs."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument
from quire.programs.workflow.graphs.prompts import Prompt
from quire.programs.workflow.graphs.values import ValueType


def read_prompt(
    node: str, field: str, text: object, inputs: Mapping[str, ValueType], own: tuple[str, ...]
) -> Prompt:
    """The prompt in the configuration ``field``; its parts are ``inputs`` and ``own``.

    Raises:
        InvalidArgument: not a text, or a part that is none of them.
    """
    where = f"{node}.{field}"
    if not isinstance(text, str):
        raise InvalidArgument(f"{where} is {text!r}: give a text", param=where)
    prompt = Prompt.read(text, where)
    for name in prompt.names:
        if name not in inputs and name not in own:
            known = ", ".join([*inputs, *own]) or "none"
            raise InvalidArgument(
                f"{where}: unknown part {{{name}}}; the parts are {known}: name one of them, or "
                "add an input",
                param=where,
            )
        kind = inputs.get(name)
        if kind not in (None, ValueType.TEXT, ValueType.TEXTS):
            raise InvalidArgument(
                f"{where}: the part {{{name}}} is of type {kind}: a part is text or texts",
                param=where,
            )
    return prompt
