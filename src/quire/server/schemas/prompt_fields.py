"""vLLM's fields about a chat's prompt and the figures of a prompt, under vLLM's names."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quire.server.schemas.base import FieldError, RequestModel, ShortText, Text, counted_first
from quire.server.schemas.generation import MAX_LOGPROBS

MAX_DOCUMENTS = 256

KeptTokens = Annotated[
    int, Field(ge=-1, le=1 << 24, description="The last so many; -1: as many as fit")
]


def check_kept_tokens(asked: int | None) -> None:
    if asked == 0:
        raise FieldError("truncate_prompt_tokens", "truncate_prompt_tokens is -1 or at least 1")


Document = Annotated[dict[ShortText, Text], Field(max_length=32), counted_first(32)]


class PromptFields(RequestModel):
    """``documents``: for templates that read them; each has texts by name, usually ``title`` and
    ``text``. ``add_special_tokens``: also put before a rendered template the tokens that the
    tokenizer puts before a text. ``include_reasoning``: false leaves the reasoning out of the
    answer."""

    truncate_prompt_tokens: KeptTokens | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    documents: Annotated[list[Document], Field(max_length=MAX_DOCUMENTS, fail_fast=True)] | None = (
        None
    )
    add_special_tokens: bool | None = None
    include_reasoning: bool | None = None
