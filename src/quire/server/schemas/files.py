"""``/v1/files``: a stored file."""

from __future__ import annotations

from typing import Literal

from quire.server.schemas.base import WholeModel

FilePurpose = Literal["batch", "batch_output"]


class FileObject(WholeModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: FilePurpose
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(WholeModel):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(WholeModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
