"""``/v1/batches``: the request, the batch, and the lines of its files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from quire.server.schemas.base import RequestModel, ShortText, ShortTexts, WholeModel

BatchEndpoint = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
]
BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Window = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,2}h$")]


class ExpiresAfter(RequestModel):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchRequest(RequestModel):
    """``completion_window``: hours, ``24h`` in OpenAI's service; requests that have not run by then
    have expired. ``output_expires_after``: the lifetime of the files that are made."""

    input_file_id: ShortText
    endpoint: BatchEndpoint
    completion_window: Window
    metadata: ShortTexts | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(WholeModel):
    """An error in the input; ``line`` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(WholeModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchCounts(WholeModel):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchJob(WholeModel):
    """Times are Unix times in seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: BatchEndpoint
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = Field(default_factory=BatchCounts)
    metadata: dict[str, str] | None = None


class BatchList(WholeModel):
    object: Literal["list"] = "list"
    data: list[BatchJob]
    first_id: str | None
    last_id: str | None
    has_more: bool
