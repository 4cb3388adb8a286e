"""The fields that chat completions and completions share: sampling, limits, identity, accepted.

Names and meanings are OpenAI's and, for the extensions, those that vLLM and SGLang share.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from quire.server.schemas.base import (
    LIST_SHAPE,
    TEXT_SHAPE,
    EchoedModel,
    JsonObject,
    Name,
    RequestModel,
    ResponseModel,
    ShortText,
    ShortTexts,
    Text,
    TextOrList,
    TokenId,
    counted_first,
)

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_MAX_TOKENS = 1 << 24
MAX_PROCESSORS = 16

StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)]
Stop = Annotated[Annotated[StopString, TEXT_SHAPE] | Annotated[StopStrings, LIST_SHAPE], TextOrList]
ChoiceText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
BiasKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")]
MAX_PRIORITY = (1 << 31) - 1
Priority = int
"""A hint: one beyond ``MAX_PRIORITY`` in size is clipped (``hints``)."""
Bias = Annotated[float, Field(ge=-100, le=100)]
BadWord = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Breaker = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class StreamOptions(RequestModel):
    """``include_usage``: one more chunk with the usage. ``continuous_usage_stats``: in every chunk.
    ``include_obfuscation`` is accepted; nothing is padded."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class ProcessorField(RequestModel):
    """A processor by name, standard or from a package that is installed where the engine runs."""

    name: Name
    params: Annotated[dict[ShortText, Any], Field(max_length=32), counted_first(32)] | None = None


class DryFields(RequestModel):
    """DRY, with the field names of other servers; ``dry_multiplier`` switches it on."""

    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Field(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    dry_range: (
        Annotated[int, Field(ge=0, le=1 << 30, description="0: the whole history")] | None
    ) = None
    dry_sequence_breakers: (
        Annotated[list[Breaker], Field(max_length=128, fail_fast=True)] | None
    ) = None


class SamplingFields(DryFields):
    """Sampling fields. Defaults come from the model's generation_config.json."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 20, description="-1 or 0: no limit")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] | None = None
    logit_bias: (
        Annotated[dict[BiasKey, Bias], Field(max_length=1024), counted_first(1024)] | None
    ) = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=1 << 16, fail_fast=True)] | None
    ) = None
    bad_words: Annotated[list[BadWord], Field(max_length=1024, fail_fast=True)] | None = None
    processors: (
        Annotated[list[ProcessorField], Field(max_length=MAX_PROCESSORS, fail_fast=True)] | None
    ) = None
    seed: Annotated[int, Field(ge=-(1 << 63) + 1, lt=1 << 63)] | None = None


class LimitFields(RequestModel):
    """When a choice ends."""

    max_tokens: Annotated[int, Field(ge=0, le=MAX_MAX_TOKENS)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_MAX_TOKENS)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None

    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class AgentHints(EchoedModel):
    priority: Priority | None = Field(None, description="As in Dynamo: higher runs first")


class NvidiaExtension(EchoedModel):
    """Dynamo's ``nvext``; fields that are not used here are ignored."""

    agent_hints: AgentHints | None = None


class IdentityFields(RequestModel):
    """The session of the request. See ``identity`` for the order in which these fields and headers
    are read."""

    session_id: Name | None = None
    prompt_cache_key: ShortText | None = None
    priority: Priority | None = Field(None, description="As in vLLM: lower runs first")
    nvext: NvidiaExtension | None = None
    cache_salt: Name | None = Field(
        None, description="The call neither reads nor feeds the shared prefix cache"
    )


class AcceptedFields(RequestModel):
    """Fields of OpenAI's service that have no effect here: accepted, bounded, unused."""

    user: ShortText | None = None
    store: bool | None = None
    metadata: ShortTexts | None = None
    service_tier: ShortText | None = None
    prompt_cache_retention: ShortText | None = None
    prompt_cache_options: (
        Annotated[dict[ShortText, Any], Field(max_length=16), counted_first(16)] | None
    ) = None
    safety_identifier: ShortText | None = None


class StructuredOutputs(RequestModel):
    """A constraint on the whole answer, as in vLLM: exactly one of the fields.

    ``grammar`` is a Lark grammar in llguidance's dialect.
    """

    json_schema: JsonObject | None = Field(None, alias="json")
    regex: Text | None = None
    choice: (
        Annotated[list[ChoiceText], Field(min_length=1, max_length=1024, fail_fast=True)] | None
    ) = None
    grammar: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if len(self.model_fields_set) != 1:
            raise ValueError("give exactly one of json, regex, choice and grammar")
        return self


class GenerationFields(SamplingFields, LimitFields, IdentityFields, AcceptedFields):
    """The fields that every generating route accepts."""

    model: Name | None = Field(None, description="Absent: the node's default model")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None


class PromptTokensDetails(ResponseModel):
    cached_tokens: int


class CompletionTokensDetails(ResponseModel):
    reasoning_tokens: int


class Usage(ResponseModel):
    """``cached_tokens`` were found in the prefix cache and not computed again."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


FinishReason = Literal["stop", "length", "tool_calls"]
