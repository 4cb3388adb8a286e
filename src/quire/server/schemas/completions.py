"""``/v1/completions``: the request, the answer and its chunks (which have the same form)."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from quire.server.schemas.base import (
    TEXT_SHAPE,
    FieldError,
    ResponseModel,
    Text,
    TokenId,
    TokenIds,
)
from quire.server.schemas.generation import MAX_LOGPROBS, FinishReason, GenerationFields, Usage
from quire.server.schemas.prompt_fields import KeptTokens, check_kept_tokens

MAX_PROMPTS = 256

PromptIds = Annotated[list[TokenId], Field(min_length=1, max_length=1 << 20, fail_fast=True)]
PromptTexts = Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
PromptIdLists = Annotated[
    list[PromptIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
]


def _shape(prompt: object) -> str | None:
    """Return the shape of the prompt; that of a list follows from its first item."""
    if isinstance(prompt, str):
        return TEXT_SHAPE.tag
    if not isinstance(prompt, list):
        return None
    first = prompt[0] if prompt else 0
    return (
        "<texts>" if isinstance(first, str) else "<lists>" if isinstance(first, list) else "<ids>"
    )


Prompt = Annotated[
    Annotated[Text, TEXT_SHAPE]
    | Annotated[PromptIds, Tag("<ids>")]
    | Annotated[PromptTexts, Tag("<texts>")]
    | Annotated[PromptIdLists, Tag("<lists>")],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="must be a text, token ids, or a list of either",
    ),
]


class CompletionsRequest(GenerationFields):
    """``prompt``: a text, token ids, or a list of either. ``best_of`` may only repeat ``n``."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: Annotated[str, Field(json_schema_extra={"maxLength": 0})] | None = Field(
        None, description="Filling in the middle is not served: absent, null or empty"
    )
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: KeptTokens | None = None

    @field_validator("suffix")
    @classmethod
    def _no_suffix(cls, suffix: str | None) -> str | None:
        if suffix:
            raise ValueError("filling in the middle is not served: leave it out")
        return suffix

    @model_validator(mode="after")
    def _consistent(self) -> CompletionsRequest:
        check_kept_tokens(self.truncate_prompt_tokens)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise FieldError("best_of", "best_of is not served: leave it out or make it equal to n")
        return self

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, one entry each."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        # the prompt was validated against the shape of its first item
        if isinstance(prompt[0], int):
            return [prompt]
        return cast(list[str | list[int]], prompt)


class CompletionLogprobs(ResponseModel):
    """Parallel lists, one entry per token; the first prompt token of an echo has no figures."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: TokenIds | None = None
    prompt_token_ids: TokenIds | None = None


class Completion(ResponseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
