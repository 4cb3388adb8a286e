"""``/ui``: the programs and engines of the node in a browser. Without a key; its data needs one."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from quire.server.context import context_of
from quire.server.errors.errors import HttpError
from quire.server.page import PAGE_PATH

router = APIRouter()


@router.get(PAGE_PATH, response_class=HTMLResponse)
async def page(request: Request) -> Response:
    """The page. It gets its data from the other routes, with the API key that its reader gives."""
    return _answer(request, "index.html")


@router.get(PAGE_PATH + "/{name}", include_in_schema=False)
async def page_file(request: Request, name: str) -> Response:
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    found = context_of(request).page.get(name)
    if found is None:
        raise HttpError(404, f"the page {PAGE_PATH} has no file {name[:100]!r}", code="not_found")
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=dict(found.headers))
    return Response(found.body, headers=dict(found.headers), media_type=found.media_type)
