"""Renders a conversation to prompt tokens with the model's own chat template, off the event loop.

Owns the threads that render and tokenize, and one compiled template per thread and model. The
template's limits bound time and output; a conversation that exceeds them is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import InvalidArgument, ModelFormatError
from quire.core.interfaces import ServedModel
from quire.programs.builtin import PromptImage
from quire.programs.chat import (
    THINK_START,
    ChatTemplate,
    chat_template,
    dialect_of,
    for_template,
)
from quire.server.chat.images import expand_images
from quire.server.requests.plain_text import added_start
from quire.server.schemas.base import MAX_PROMPT_TOKENS

logger = logging.getLogger(__name__)

_NUM_THREADS = 2


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The input of a chat template. ``messages`` come from ``template_messages``; ``images``: their
    files; ``documents``: for templates that use them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[bytes] = ()
    documents: Sequence[Mapping[str, str]] | None = None
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered prompt. ``opens_reasoning``: it ends with the start of the model's reasoning.
    ``token_ids`` have one token for each embedding of ``images``."""

    text: str
    token_ids: tuple[int, ...]
    opens_reasoning: bool
    images: tuple[PromptImage, ...] = ()


class ChatRenderer:
    """Renders several requests at a time with a few threads; further requests wait."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="quire-template")
        self._local = threading.local()

    async def render(self, model: ServedModel, conversation: TemplateInput) -> ChatPrompt:
        """Return the prompt of ``conversation`` for ``model``.

        Raises:
            InvalidArgument: the model has no template, its template does not compile, or the
                template refuses the messages or reads no documents.
            PromptTooLong: its images take more tokens than any prompt may have. Whether the prompt
                fits its model is not checked here: routes that count tokens need no check.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._render, model, conversation)

    def close(self) -> None:
        """End the threads once their current work is done. Idempotent."""
        self._threads.shutdown(wait=False)

    def _render(self, model: ServedModel, conversation: TemplateInput) -> ChatPrompt:
        if conversation.documents and "documents" not in (model.chat_template or ""):
            raise InvalidArgument(
                f"the chat template of {model.id!r} reads no documents: put them into a message",
                param="documents",
            )
        text = self._template(model).render(
            for_template(conversation.messages, dialect_of(model)),
            tools=conversation.tools,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
            documents=conversation.documents,
        )
        own = model.tokenizer.encode(text)
        start = added_start(model, own, add_special_tokens=conversation.add_special_tokens)
        token_ids, images = expand_images(
            [*start, *own],
            conversation.images,
            model.info.images,
            max(model.info.max_model_len, MAX_PROMPT_TOKENS),
        )
        return ChatPrompt(text, token_ids, text.rstrip().endswith(THINK_START), images)

    def _template(self, model: ServedModel) -> ChatTemplate:
        """Return this thread's compiled template of ``model``."""
        compiled: dict[str, ChatTemplate] = self._local.__dict__
        key = f"{model.id}\0{model.info.content}"
        if key not in compiled:
            try:
                compiled[key] = chat_template(model)
            except ModelFormatError as exc:
                raise InvalidArgument(
                    f"model {model.id!r} cannot chat, for {exc.message}: use completions, or mend "
                    "the template among the model's files and start the server again",
                    param="model",
                ) from exc
        return compiled[key]


def warn_of_broken_templates(models: Iterable[ServedModel]) -> None:
    """Log a warning for each of ``models`` whose template no chat request can use."""
    for model in models:
        if model.chat_template is None:
            continue
        try:
            chat_template(model)
        except ModelFormatError as exc:
            logger.warning("model %s serves no chats: %s", model.id, exc.message)
