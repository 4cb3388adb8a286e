"""``/v1/microserving``: requests and answers of the three calls, and of leases and engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from quire.server.schemas.base import (
    MAX_PROMPT_TOKENS,
    TEXT_SHAPE,
    FieldError,
    Name,
    RequestModel,
    ResponseModel,
    Text,
    TokenId,
)
from quire.server.schemas.completions import CompletionsRequest
from quire.server.schemas.generation import IdentityFields
from quire.server.schemas.messages import Messages, TemplateVariables
from quire.server.schemas.service import TokenizeRequest, check_prompt_fields
from quire.server.schemas.tools import MAX_TOOLS, ToolDefinition

MAX_TTL_S = 3600
MAX_IMAGES = 256
MAX_GONE = 4096

KvAddrInfo = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Ttl = Annotated[float, Field(gt=0, le=MAX_TTL_S)]
Index = Annotated[int, Field(gt=-MAX_PROMPT_TOKENS, lt=MAX_PROMPT_TOKENS)]
"""The index of a token of the prompt; a negative one counts from its end."""


def _shape(prompt: object) -> str | None:
    if isinstance(prompt, str):
        return TEXT_SHAPE.tag
    return "<ids>" if isinstance(prompt, list) else None


PromptIds = Annotated[
    list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True)
]
OnePrompt = Annotated[
    Annotated[Text, TEXT_SHAPE] | Annotated[PromptIds, Tag("<ids>")],
    Discriminator(
        _shape, custom_error_type="shape", custom_error_message="must be a text or token ids"
    ),
]


class Rank(RequestModel):
    """One life of an engine."""

    engine: Name
    epoch: Annotated[int, Field(ge=0, lt=1 << 62)]


Images = Annotated[list[str], Field(max_length=MAX_IMAGES, fail_fast=True)]
"""Data URLs of PNG and JPEG files, in the order of the prompt, which has the model's image token
once for each. Indices count the prompt with the tokens of an image in the place of that one."""


class CallPromptFields(IdentityFields):
    """The fields that the calls share: a prompt, or the messages of a chat with the images in it.
    ``request_id``: a request that is sent again under the same id is done once."""

    model: Name | None = Field(None, description="Absent: the node's default model")
    prompt: OnePrompt | None = None
    images: Images | None = Field(None, description="Data URLs, one for each token for images")
    add_special_tokens: bool | None = None
    messages: Messages | None = Field(None, description="In place of prompt: as in a chat")
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    request_id: Name | None = None

    @model_validator(mode="after")
    def _one(self) -> CallPromptFields:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is not None and self.images is not None:
            raise ValueError("messages have their images among them: leave images out")
        check_prompt_fields(self, is_chat=self.messages is not None)
        return self


class PrepRecvRequest(CallPromptFields):
    end: Index = Field(description="Before this token; a negative one counts from the end")
    ttl_s: Ttl = Field(60.0, description="The lease ends after this time, unless it is renewed")


class PrepRecvAnswer(ResponseModel):
    """``kv_addr_info`` goes to ``remote_send`` and ``start_generate``, unchanged. The first
    ``matched_len`` tokens are here already; ``rank``: the engine that waits for the others, up to
    ``end``."""

    kv_addr_info: str
    matched_len: int
    num_tokens: int
    end: int
    expires_in_s: float
    rank: Rank


class RemoteSendRequest(CallPromptFields):
    kv_addr_info: KvAddrInfo
    recv_rank: Rank | None = Field(None, description="The receiver, to be compared with the lease")
    begin: Index
    end: Index


class RemoteSendAnswer(ResponseModel):
    """What was sent; the receiver has it. What the receiver had already was not sent again.
    ``transport``: what has carried it: ``nixl``, ``shared_memory``, ``tcp`` or ``in_process``,
    several joined by ``+``; nothing if nothing was sent."""

    num_tokens: int
    num_bytes: int
    elapsed_s: float
    transport: str


class StartGenerateRequest(CompletionsRequest):
    """A completion of one prompt whose first ``begin`` tokens have their K and V here."""

    prompt: OnePrompt
    images: Images | None = Field(None, description="Data URLs, one for each token for images")
    begin: Index = Field(0, description="What is before it comes from the lease, if one is named")
    kv_addr_info: KvAddrInfo | None = Field(None, description="Absent: the prefix cache alone")
    num_generated: Annotated[int, Field(ge=0, le=MAX_PROMPT_TOKENS)] | None = Field(
        None, description="How many of the prompt's last tokens were sampled before"
    )
    request_id: Name | None = Field(None, description="Under it the answer is generated only once")


class PromptPagesRequest(TokenizeRequest):
    """A prompt as text or token ids, or messages as in a chat."""

    prompt: OnePrompt | None = None  # type: ignore[assignment]
    return_token_strs: Literal[False] = False


class PromptPages(ResponseModel):
    """``keys``: those of the prompt's full pages, as in ``/v1/microserving/index`` for engines with
    this ``content`` and ``page_size``: eight bytes each, in base64."""

    tokens: list[int]
    content: str
    page_size: int
    keys: str


class PinRequest(IdentityFields):
    model: Name | None = Field(None, description="Absent: the node's default model")
    prompt: OnePrompt
    add_special_tokens: bool | None = None
    price: Annotated[float, Field(ge=0, lt=1e300)] = Field(
        description="Cached pages with a lower one are evicted before; 0 takes the price back"
    )
    ttl_s: Ttl = Field(60.0, description="The price holds for this time")

    @model_validator(mode="after")
    def _shared(self) -> PinRequest:
        if self.cache_salt is not None:
            raise FieldError(
                "cache_salt",
                "a prompt with cache_salt has no pages in the shared prefix cache, so none can "
                "have a price: leave out the salt, or do not pin",
            )
        return self


class PinAnswer(ResponseModel):
    """The first ``num_tokens`` tokens are cached, and have the price or a higher one."""

    num_tokens: int
    expires_in_s: float


class LeaseRequest(RequestModel):
    kv_addr_info: KvAddrInfo


class CancelRequest(LeaseRequest):
    when_arrived: bool = Field(
        default=False,
        description="End it when all has arrived; full pages then stay in the prefix cache",
    )


class ChannelLeaveRequest(RequestModel):
    channel: Name
    stream: Annotated[int, Field(gt=0, lt=1 << 32, description="Its number in the channel")]


class RecordsQuestion(RequestModel):
    """The request of a reader that keeps the records of restartable programs."""

    reader: Name = Field(
        description="The reader's name; a node sends its records to one reader at a time"
    )
    feed: Annotated[str, StringConstraints(max_length=256)] = Field(
        "", description="`feed` of the last answer"
    )
    number: Annotated[int, Field(ge=0, lt=1 << 53)] = Field(
        0, description="`number` of the last answer, whose content the reader keeps now"
    )
    gone: Annotated[list[Name], Field(max_length=MAX_GONE, fail_fast=True)] = Field(
        [], description="Programs of this node that another node goes on with"
    )


class HandedOver(RequestModel):
    is_taken: bool = Field(description="Another node goes on with the program")


class HeldText(ResponseModel):
    """The first tokens of a text that fill whole pages."""

    model: str
    tokens: list[int]


class HeldTexts(ResponseModel):
    texts: list[HeldText]


class RenewRequest(LeaseRequest):
    ttl_s: Ttl


class RenewAnswer(ResponseModel):
    """``kv_addr_info`` replaces the former one, which expires when the lease would have expired."""

    kv_addr_info: str
    expires_in_s: float


class MicroservingEngine(ResponseModel):
    """One engine of the node. Engines with equal ``content`` exchange K and V; those with equal
    ``layout`` copy them unchanged. ``free_blocks``: free or cached. ``load``: running and waiting
    calls, divided by the number of sequences that it decodes at once. ``token_bytes``: bytes of K
    and V of one token. ``step_s`` and ``prompt_token_s``: average times of a decode step and of one
    token of a prompt; null if none was measured yet."""

    engine: str
    epoch: int
    model: str
    is_up: bool
    content: str
    layout: str
    page_size: int
    max_model_len: int
    num_blocks: int
    free_blocks: int
    running: int
    waiting: int
    load: float
    token_bytes: int
    step_s: float | None
    prompt_token_s: float | None


class EngineRows(ResponseModel):
    engines: list[MicroservingEngine]
