"""``/v1/embeddings`` (OpenAI), ``/v1/rerank`` (Jina, Cohere) and ``/v1/score`` (vLLM)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from quire.server.schemas.base import (
    LIST_SHAPE,
    MAX_TEXT_CHARS,
    OBJECT_SHAPE,
    TEXT_SHAPE,
    EchoedModel,
    FieldError,
    Name,
    RequestModel,
    ResponseModel,
    ShortText,
    TextOrList,
    TokenIds,
    text_or_object,
)

MAX_TEXTS = 2048
"""The most texts of one request, as in OpenAI's service."""

InputText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT_CHARS)]
InputTexts = Annotated[list[InputText], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
OneTokens = Annotated[TokenIds, Field(min_length=1)]
ManyTokens = Annotated[list[OneTokens], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]


def _shape(given: object) -> str | None:
    """Return the shape of the input; that of a list follows from its first item."""
    if isinstance(given, str):
        return TEXT_SHAPE.tag
    if not isinstance(given, list):
        return None
    first = given[0] if given else ""
    return "<ids>" if isinstance(first, int) else "<lists>" if isinstance(first, list) else "<list>"


EmbeddingInput = Annotated[
    Annotated[InputText, TEXT_SHAPE]
    | Annotated[InputTexts, LIST_SHAPE]
    | Annotated[OneTokens, Tag("<ids>")]
    | Annotated[ManyTokens, Tag("<lists>")],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="must be a text, token ids, or a list of either",
    ),
]
Texts = Annotated[Annotated[InputText, TEXT_SHAPE] | Annotated[InputTexts, LIST_SHAPE], TextOrList]


class EncodingFields(RequestModel):
    """The fields that all three requests share."""

    model: Name | None = Field(None, description="Absent: the first model of the right kind")
    truncate_prompt_tokens: (
        Annotated[
            int,
            Field(ge=-1, le=1 << 20, description="Cut longer sequences; -1: to the model's limit"),
        ]
        | None
    ) = None
    user: ShortText | None = None

    @model_validator(mode="after")
    def _room(self) -> EncodingFields:
        if self.truncate_prompt_tokens is not None and 0 <= self.truncate_prompt_tokens < 3:
            raise FieldError("truncate_prompt_tokens", "truncate_prompt_tokens is -1 or at least 3")
        return self


class EmbeddingsRequest(EncodingFields):
    """``dimensions``: keep the first N values, scaled to length 1; for models trained for it.
    ``prompt_name``: which of the model's own prompts is put before each text."""

    input: EmbeddingInput
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    prompt_name: ShortText | None = Field(
        None, description="One of the model's prompts, as query; absent: its default"
    )

    def inputs(self) -> list[str] | list[list[int]]:
        """Return texts, or sequences of token ids."""
        given = self.input
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [given]
        return given


class RerankDocument(EchoedModel):
    text: InputText


Document = Annotated[
    Annotated[InputText, TEXT_SHAPE] | Annotated[RerankDocument, OBJECT_SHAPE],
    Discriminator(
        text_or_object,
        custom_error_type="shape",
        custom_error_message="must be a text or an object with text",
    ),
]
Documents = Annotated[list[Document], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]


class PairFields(EncodingFields):
    """The fields that requests for scores share."""

    instruction: InputText | None = Field(
        None, description="What makes a text fit, for models whose pairs say so (Qwen3-Reranker)"
    )


class RerankRequest(PairFields):
    query: InputText
    documents: Documents
    top_n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] | None = None
    return_documents: bool | None = None

    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]


class ScoreRequest(PairFields):
    """One ``text_1`` with every ``text_2``, or two lists of equal length in pairs."""

    text_1: Texts
    text_2: Texts

    @model_validator(mode="after")
    def _pairs(self) -> ScoreRequest:
        first, second = self.lists()
        if len(first) not in (1, len(second)):
            raise FieldError(
                "text_1",
                f"text_1 has {len(first)} texts and text_2 {len(second)}: send one text_1, or as "
                "many of both",
            )
        return self

    def lists(self) -> tuple[list[str], list[str]]:
        first, second = (
            [text] if isinstance(text, str) else text for text in (self.text_1, self.text_2)
        )
        return first, second


class EncodingUsage(ResponseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(ResponseModel):
    """``embedding``: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(ResponseModel):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EncodingUsage


class RerankedDocument(ResponseModel):
    text: str


class RerankResult(ResponseModel):
    """``index``: the place of the document in the request, from 0."""

    index: int
    relevance_score: float
    document: RerankedDocument | None = None


class RerankList(ResponseModel):
    """The results, best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: EncodingUsage


class Score(ResponseModel):
    object: Literal["score"]
    index: int
    score: float


class ScoreList(ResponseModel):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: EncodingUsage
