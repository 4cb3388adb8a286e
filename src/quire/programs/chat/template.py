"""Renders messages to a prompt with the model's chat template.

Owns compiling and rendering within limits. Rendering is synchronous: a server calls it outside its
event loop. A template is rendered by one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from quire.core.errors import InvalidArgument, ModelFormatError
from quire.core.interfaces import ServedModel
from quire.programs.chat.dialects import Dialect, dialect_taught_by
from quire.programs.chat.template_budget import Budget, BudgetedEnvironment, TemplateLimit

MAX_TEMPLATE_CHARS = 1 << 18
Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template.

    ``special_tokens``: names such as ``bos_token`` that the template may use. ``max_operations``
    limits time (loop iterations, calls, kilobytes of text), ``max_output_chars`` the prompt.

    Raises:
        ModelFormatError: the template does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        max_operations: int = 500_000,
        max_output_chars: int = 4 << 20,
    ) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelFormatError(
                f"the chat template has {len(source)} characters, at most {MAX_TEMPLATE_CHARS} "
                "are allowed"
            )
        self._environment = BudgetedEnvironment()
        self._special_tokens = dict(special_tokens or {})
        self._limits = (max_operations, max_output_chars)
        self._lock = threading.Lock()
        try:
            self._template = self._environment.from_string(source)
        except (TemplateSyntaxError, RecursionError) as exc:
            raise ModelFormatError(f"the chat template does not compile: {exc}") from exc

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
        """The prompt text.

        ``continue_final_message``: the prompt ends within the last message, so that the model
        continues it. ``variables``: further names for the template (``chat_template_kwargs``).
        ``documents``: each with texts by name, for templates that use them.

        Raises:
            InvalidArgument: the template refuses the messages, or exceeds a limit.
        """
        if not messages:
            raise InvalidArgument("a conversation needs at least one message")
        if continue_final_message and add_generation_prompt:
            raise InvalidArgument(
                "continue_final_message and add_generation_prompt exclude each other: set one"
            )
        names = {
            **self._special_tokens,
            **(variables or {}),
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(names)
        return _cut_behind(text, messages[-1]) if continue_final_message else text

    def _render(self, names: Mapping[str, Any]) -> str:
        max_operations, max_output_chars = self._limits
        with self._lock:
            budget = self._environment.budget = Budget(max_operations, max_output_chars)
            try:
                parts, num_chars = [], 0
                for part in self._template.generate(**names):
                    parts.append(part)
                    num_chars += len(part)
                    budget.check_size(num_chars if num_chars > max_output_chars else len(part))
                text = "".join(parts)
                text.encode()  # a template can write a lone surrogate, which tokenizers refuse
            except TemplateLimit as exc:
                raise InvalidArgument(
                    f"{exc.message}; at most {max_operations} operations and {max_output_chars} "
                    "characters are allowed: shorten the messages"
                ) from exc
            except SecurityError as exc:
                raise InvalidArgument(f"the chat template uses a forbidden feature: {exc}") from exc
            except TemplateError as exc:
                raise InvalidArgument(f"the chat template refuses the messages: {exc}") from exc
            except (
                ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError,
                TypeError, ValueError,
            ) as exc:  # fmt: skip
                raise InvalidArgument(
                    f"the chat template cannot use these messages: {type(exc).__name__}: {exc}"
                ) from exc
        return text


def _cut_behind(text: str, message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list) and content:  # parts, as for models that take images: the last one
        content = content[-1].get("text")
    if not isinstance(content, str) or not content.strip():
        raise InvalidArgument("continue_final_message: the last message must have text to continue")
    bare = content.strip()
    start = text.rfind(bare)
    if start < 0:
        raise InvalidArgument(
            "continue_final_message: the chat template changes the last message's text, so it "
            "cannot be continued"
        )
    # templates often strip messages; trailing space that they keep is part of the message
    kept = content.rstrip()
    tail = content[len(kept) :]
    end = start + len(bare)
    return text[: end + len(tail)] if text.startswith(tail, end) else text[:end]


def chat_template(model: ServedModel) -> ChatTemplate:
    """The template of a served model, compiled once for each thread, so that threads do not wait
    for each other.

    Raises:
        InvalidArgument: the model has none.
    """
    if model.chat_template is None:
        raise InvalidArgument(
            f"model {model.id!r} has no chat template: use completions, or serve a chat model",
            param="model",
        )
    special_tokens = tuple(sorted(model.special_tokens.items()))
    return _compiled(model.chat_template, special_tokens, threading.get_ident())


def dialect_of(model: ServedModel) -> Dialect:
    """The dialect of a served model, determined from its chat template."""
    return dialect_taught_by(model.chat_template or "")


@lru_cache(maxsize=64)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...], _: int) -> ChatTemplate:
    """Compile a template. Cached, because compiling takes a hundred times as long as rendering and
    an agent renders for every turn."""
    return ChatTemplate(source, special_tokens=dict(special_tokens))
