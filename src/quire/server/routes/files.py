"""``/v1/files``: the input and output files of batches."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import FileResponse, Response

from quire.server.context import caller_of, context_of
from quire.server.files.reception import receive_file
from quire.server.files.store import FileRecord
from quire.server.list_page import ListPage
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.base import Responses
from quire.server.schemas.files import DeletedFile, FileList, FileObject, FilePurpose

router = APIRouter(route_class=StrictRoute, tags=["files"])

FileId = Annotated[str, Path(max_length=256)]
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "string", "pattern": "^[0-9]{4,7}$"},
                    },
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                }
            }
        },
    }
}
_CONTENT: Responses = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}


@router.post("/v1/files", response_model=FileObject, openapi_extra=_FORM)
async def upload_file(request: Request) -> Response:
    """Upload a file of requests for a batch."""
    context = context_of(request)
    record = await receive_file(
        request, context.files, caller_of(request), context.config.body_timeout_s
    )
    return _json(file_object(record))


@router.get("/v1/files", response_model=FileList)
async def list_files(
    request: Request,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
    purpose: Annotated[FilePurpose | None, Query()] = None,
) -> Response:
    """The caller's files, newest first unless `order` is `asc`."""
    files = await asyncio.to_thread(context_of(request).files.files, caller_of(request))
    files = [record for record in files if purpose in (None, record.purpose)]
    page = ListPage(files if order == "asc" else files[::-1], lambda one: one.id, after, limit)
    shown = [file_object(record) for record in page.items]
    return _json(
        FileList(data=shown, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more)
    )


@router.get("/v1/files/{file}", response_model=FileObject)
async def get_file(request: Request, file: FileId) -> Response:
    """The metadata of a file."""
    return _json(file_object(await _find(request, file)))


@router.get("/v1/files/{file}/content", response_class=Response, responses=_CONTENT)
async def get_content(request: Request, file: FileId) -> Response:
    """The content of a file."""
    record = await _find(request, file)
    return FileResponse(
        context_of(request).files.path(record), media_type="application/octet-stream"
    )


@router.delete("/v1/files/{file}", response_model=DeletedFile)
async def delete_file(request: Request, file: FileId) -> Response:
    """Delete a file, unless an unfinished batch reads it."""
    context = context_of(request)
    record = await _find(request, file)
    context.batches.check_unused(caller_of(request), record.id)
    await asyncio.to_thread(context.files.delete, record)
    return _json(DeletedFile(id=record.id))


async def _find(request: Request, file_id: str) -> FileRecord:
    return await asyncio.to_thread(context_of(request).files.get, caller_of(request), file_id)


def file_object(record: FileRecord) -> FileObject:
    return FileObject.model_validate(
        {
            "id": record.id,
            "bytes": record.num_bytes,
            "created_at": record.created_s,
            "expires_at": record.expires_s,
            "filename": record.filename,
            "purpose": record.purpose,
        }
    )


def _json(body: FileObject | FileList | DeletedFile) -> Response:
    return Response(body.to_json(), media_type="application/json")
