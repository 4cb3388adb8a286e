"""A prompt, or a chat rendered by the model's template, as tokens."""

from __future__ import annotations

import asyncio
from typing import Protocol

from quire.core.interfaces import ServedModel
from quire.server.chat.conversation import template_messages
from quire.server.chat.images import ImageReader
from quire.server.chat.prompt import ChatPrompt, ChatRenderer, TemplateInput
from quire.server.requests.plain_text import text_tokens
from quire.server.schemas.messages import Messages, TemplateVariables
from quire.server.schemas.service import TokenizeRequest
from quire.server.schemas.tools import ToolDefinition


class ChatFields(Protocol):
    """The fields that decide how a chat becomes tokens."""

    @property
    def messages(self) -> Messages | None: ...
    @property
    def tools(self) -> list[ToolDefinition] | None: ...
    @property
    def chat_template_kwargs(self) -> TemplateVariables | None: ...
    @property
    def add_generation_prompt(self) -> bool: ...
    @property
    def continue_final_message(self) -> bool: ...
    @property
    def add_special_tokens(self) -> bool | None: ...


async def tokens_of(
    renderer: ChatRenderer, model: ServedModel, body: TokenizeRequest
) -> tuple[int, ...]:
    """Return ``body`` as tokens of ``model``."""
    if body.messages is None:
        text, special = body.prompt or "", body.add_special_tokens
        return tuple(await asyncio.to_thread(text_tokens, model, text, special))
    return (await prompt_of(renderer, model, body)).token_ids


async def prompt_of(renderer: ChatRenderer, model: ServedModel, body: ChatFields) -> ChatPrompt:
    """Return the messages of ``body`` as a prompt of ``model``."""
    images = ImageReader(model.info.images)
    conversation = TemplateInput(
        template_messages(body.messages or [], images),
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools] if body.tools else None,
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs or {},
        images=images.files,
        add_special_tokens=bool(body.add_special_tokens),
    )
    return await renderer.render(model, conversation)
