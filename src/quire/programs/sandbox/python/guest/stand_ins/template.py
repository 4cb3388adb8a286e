"""Chat templates inside a guest: the host renders them, within its own limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel, Tokenizer
from quire.programs.chat.dialects import Dialect

Message = Mapping[str, Any]


class Renderer(Protocol):
    """The additional interface of the guest's tokenizer, which knows its model."""

    @property
    def dialect(self) -> Dialect: ...

    def render(self, arguments: Mapping[str, Any]) -> str: ...


class ChatTemplate:
    """Has the interface of ``quire.programs.chat.template.ChatTemplate``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._renderer = cast(Renderer, tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
    ) -> str:
        return self._renderer.render(
            {
                "messages": [dict(message) for message in messages],
                "tools": None if tools is None else [dict(tool) for tool in tools],
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
                "variables": dict(variables or {}),
                "documents": None if documents is None else [dict(one) for one in documents],
            }
        )


def chat_template(model: ServedModel) -> ChatTemplate:
    """The template of a served model; see ``quire.programs.chat.template.chat_template``."""
    if model.chat_template is None:
        raise InvalidArgument(
            f"model {model.id!r} has no chat template: use completions, or serve a chat model",
            param="model",
        )
    return ChatTemplate(model.tokenizer)


def dialect_of(model: ServedModel) -> Dialect:
    """See ``quire.programs.chat.template.dialect_of``: the host has determined it from the
    template."""
    return cast(Renderer, model.tokenizer).dialect
