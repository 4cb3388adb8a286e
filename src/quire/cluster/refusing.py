"""Answers with an error, in the form of the API in use."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from quire.core.errors import QuireError
from quire.server.anthropic.errors import AnthropicErrors
from quire.server.errors.errors import HttpError, error_body, response_of
from quire.server.errors.refusals import note


async def refuse(error: QuireError | HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with ``error``. Nothing of the answer may have been sent."""
    if isinstance(error, QuireError):
        note(scope, error.code, error.message)
        response = response_of(error)
    else:
        status = error.status_code
        body = error_body(status, error.detail, code=error.code, param=error.param)
        note(scope, body["error"]["code"], error.detail)
        response = JSONResponse(body, status, error.headers)
    await AnthropicErrors(response)(scope, receive, send)
