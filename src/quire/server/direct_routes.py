"""Routes that take one JSON body, called without the framework's dispatch.

Generating routes are called thousands of times a minute, most often when many clients start at once
and the engine waits for the first of them. FastAPI's route lookup, resource stacks and dependencies
cost several times as much as such a route itself and do nothing for it: it needs a request and a
body. The framework still handles everything else: the OpenAPI document, other methods of these
paths, and all other routes.

Owns the lookup from a path to its function and the parsing of its body. Must not know what any
route does; errors are answered by the application's own handlers.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, get_type_hints

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.errors.errors import HttpError
from quire.server.own_route import OwnRoute
from quire.server.requests.query_names import check_query
from quire.server.requests.strict_json import StrictRequest

Endpoint = Callable[[Request, Any], Awaitable[Response]]

MSGPACK = "application/msgpack"
_MSGPACK_PATHS = "/v1/microserving/"
"""The bodies of these routes may be msgpack: programs send them, not people."""

_NO_BODY = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}


class DirectRoute:
    """A route that is called directly: ``endpoint`` with a body of type ``model``. ``is_own``: it
    refuses every parameter of a query (``OwnRoute``)."""

    def __init__(self, endpoint: Endpoint, model: type[BaseModel], *, is_own: bool) -> None:
        self._endpoint = endpoint
        self._model = model
        self._is_own = is_own

    async def __call__(self, request: StrictRequest) -> Response:
        """Return the route's response.

        Raises:
            RequestValidationError: the body is not JSON, or does not match the model.
            HttpError: a parameter of the query that the route does not have.
            Exception: whatever the route raises.
        """
        if self._is_own:
            check_query(request.query_params, ())
        return await self._endpoint(request, await self._body(request))

    async def _body(self, request: StrictRequest) -> BaseModel:
        try:
            body = await request.body()
        except ClientDisconnect as exc:
            raise HttpError(400, "the client left before its body was here") from exc
        kind = request.headers.get("content-type", "")
        if body and kind == MSGPACK and request.url.path.startswith(_MSGPACK_PATHS):
            value = await request.msgpack()
        elif body and _is_json(kind):
            value = await request.json()
        else:
            raise RequestValidationError([_NO_BODY])
        try:
            return self._model.model_validate(value)
        except ValidationError as exc:
            problems = exc.errors(include_url=False)
            raise RequestValidationError(
                [{**problem, "loc": ("body", *problem["loc"])} for problem in problems], body=value
            ) from exc


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json") and kind.count("/") == 1
    )


def direct_routes(routes: Iterable[APIRoute]) -> dict[str, DirectRoute]:
    """Return those of ``routes`` that answer a POST and take only a request and a body, by path."""
    found = {}
    for route in routes:
        model = _body_alone(route.endpoint)
        if route.methods == {"POST"} and "{" not in route.path and model is not None:
            found[route.path] = DirectRoute(
                route.endpoint, model, is_own=isinstance(route, OwnRoute)
            )
    return found


def _body_alone(endpoint: Callable[..., Any]) -> type[BaseModel] | None:
    """Return the body's model if ``endpoint`` takes (request, body) and nothing else."""
    hints = get_type_hints(endpoint, include_extras=True)
    kinds = [hints.get(name) for name in inspect.signature(endpoint).parameters]
    if len(kinds) != 2 or kinds[0] is not Request:
        return None
    model = kinds[1]
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


class DirectRoutes:
    """The layer around ``app`` that calls ``routes`` directly. ``application`` has the error
    handlers, which answer as they do for every other route."""

    def __init__(
        self, app: ASGIApp, *, application: FastAPI, routes: Mapping[str, DirectRoute]
    ) -> None:
        self._app = app
        self._handlers = application.exception_handlers
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path"):
            route = self._routes.get(scope["path"])
        if route is None:
            await self._app(scope, receive, send)
        else:
            await self._answer(route, StrictRequest(scope, receive), send)

    async def _answer(self, route: DirectRoute, request: StrictRequest, send: Send) -> None:
        has_started = False

        async def noting_send(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            response = await route(request)
            await response(request.scope, request.receive, noting_send)
        except Exception as error:
            handler = next(
                (self._handlers[kind] for kind in type(error).__mro__ if kind in self._handlers),
                None,
            )
            if handler is None or has_started:
                raise
            refusal = handler(request, error)
            if inspect.isawaitable(refusal):
                refusal = await refusal
            await refusal(request.scope, request.receive, noting_send)
