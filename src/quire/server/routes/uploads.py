"""``/v1/programs/uploads``: uploaded programs, stored under the hash of their content.

A caller sees only those of its own tenant. They run in the sandbox.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from quire.node.programs.uploads import UploadRecord
from quire.server.context import caller_of, context_of
from quire.server.own_route import OwnRoute
from quire.server.programs.records import parameters_body
from quire.server.programs.upload import code_of
from quire.server.schemas.programs import UploadedProgram, UploadedPrograms, UploadRequest

router = APIRouter(route_class=OwnRoute, tags=["programs"])

UploadName = Annotated[
    str, Path(max_length=256, description="The `id` or the name of an uploaded program")
]


@router.post("/v1/programs/uploads", response_model=UploadedProgram, status_code=201)
async def upload(request: Request, body: UploadRequest) -> Response:
    """Check a program and store it. The same code again is the same program."""
    context = context_of(request)
    code = code_of(body, context.config)
    kept = await context.node.upload(code, caller_of(request))
    return _json(_shown(kept), 201)


@router.get("/v1/programs/uploads", response_model=UploadedPrograms)
async def list_uploads(request: Request) -> Response:
    """Uploaded programs, newest first."""
    uploads, tenant = context_of(request).node.uploads, caller_of(request)
    shown = await asyncio.to_thread(lambda: [_shown(entry) for entry in uploads.all(tenant)])
    return _json(UploadedPrograms(object="list", data=shown))


@router.delete("/v1/programs/uploads/{program}", response_model=UploadedProgram)
async def delete_upload(request: Request, program: UploadName) -> Response:
    """Delete an uploaded program. Its running launches go on."""
    uploads = context_of(request).node.uploads
    return _json(_shown(await asyncio.to_thread(uploads.delete, program, caller_of(request))))


def _json(body: UploadedProgram | UploadedPrograms, status: int = 200) -> Response:
    return Response(body.to_json(), status, media_type="application/json")


def _shown(upload: UploadRecord) -> UploadedProgram:
    manifest = upload.manifest
    return UploadedProgram(
        id=upload.digest,
        object="uploaded_program",
        name=manifest.name,
        description=manifest.description,
        kind=upload.program.kind,
        num_bytes=len(upload.code),
        traits=manifest.traits,
        hosts=list(manifest.hosts),
        restartable=manifest.restartable,
        parameters=(None if manifest.parameters is None else parameters_body(manifest.parameters)),
        created=upload.created_s,
    )
