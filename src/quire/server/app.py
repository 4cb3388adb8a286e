"""The application: routes and middleware around one node.

Owns the order of the middleware and the frame of the OpenAPI document. Must not start or stop the
node: ``serve`` does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import ModelId, TenantId
from quire.node import Node
from quire.programs.workflow.applications import Applications
from quire.server.anthropic.errors import AnthropicErrors
from quire.server.batches.calls import BatchCalls, RouteCalls
from quire.server.batches.service import BatchService
from quire.server.chat.prompt import ChatRenderer
from quire.server.context import ServerContext
from quire.server.direct_routes import DirectRoutes, direct_routes
from quire.server.errors.errors import ErrorBoundary, install_handlers, no_route
from quire.server.files.store import FileLimits, FileStore
from quire.server.microserving.addresses import KvAddresses
from quire.server.microserving.channels import Channels
from quire.server.microserving.kept_answers import KeptAnswers
from quire.server.microserving.live_index import LiveIndex
from quire.server.microserving.once import OnceByRequest
from quire.server.page import read_page_files
from quire.server.programs.live_changes import LiveChanges
from quire.server.requests.hints import CLIPPED_HEADER
from quire.server.requests.strict_json import StrictRoute
from quire.server.responses.conversations import ConversationLimits, ConversationStore
from quire.server.responses.store import ResponseLimits, ResponseStore
from quire.server.routes import ROUTERS
from quire.server.schemas.base import ERRORS
from quire.server.security import Authenticator, EdgeMiddleware, KeyMiddleware, OriginPolicy
from quire.server.series.metrics import ServerMetrics

_DESCRIPTION = (
    "Programs and OpenAI-compatible completions on one node. Send an API key as "
    "`Authorization: Bearer KEY` where the node has tenants with keys."
)


class Application(FastAPI):
    """FastAPI's application, except that response bodies can bypass its layers (see
    ``GenerationResponse``), and go over a router's channel."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        channels: Channels = self.state.quire.channels
        with channels.over(scope, send) as sending:
            scope.setdefault("state", {})["send_body"] = sending
            await super().__call__(scope, receive, sending)


def create_app(
    node: Node,
    config: ServerConfig,
    tenants: Sequence[TenantConfig] = (TenantConfig(TenantId("default")),),
    workflows: Applications | None = None,
) -> FastAPI:
    """Return the ASGI application of ``node``. Without any API key every client is the first
    tenant. ``workflows``: the workflows that it serves (default: the shipped ones)."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await context.batches.start()
        yield
        await context.batches.close()
        context.files.close()
        await context.responses.close()
        context.renderer.close()

    app = Application(
        title="Quire",
        version=version("quire"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,
    )
    app.router.route_class = StrictRoute
    app.router.default = no_route(app.router.default)
    every = [route for router in ROUTERS for route in router.routes]
    routes = [route for route in every if isinstance(route, APIRoute)]
    direct = direct_routes(routes)
    calls = RouteCalls(DirectRoutes(no_app, application=app, routes=direct), app)
    context = _context(node, config, calls, workflows or Applications())
    app.state.quire = context
    install_handlers(app, routes)
    for router in ROUTERS:
        app.include_router(router)
    _build_routes(app)
    app.add_middleware(DirectRoutes, application=app, routes=direct)
    _add_layers(app, context, tenants)
    return app


def _build_routes(app: FastAPI) -> None:
    """Build the routes now. FastAPI builds a route only when a request first passes it, and that
    request would wait."""
    scope = {"type": "http", "method": "GET", "path": "/-", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(scope)


async def no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Never reached: a batch's endpoint is always a direct route."""
    raise AssertionError(f"{scope['path']} is no direct route")


def _context(
    node: Node, config: ServerConfig, calls: BatchCalls, workflows: Applications
) -> ServerContext:
    directory = None if config.data_dir is None else config.data_dir / "files"
    files = FileStore(directory, FileLimits(), time.time)
    started_unix_s = int(time.time())
    return ServerContext(
        node=node,
        config=config,
        renderer=ChatRenderer(),
        metrics=ServerMetrics(node),
        responses=_response_store(node, config),
        conversations=ConversationStore(
            ConversationLimits(config.response_ttl_s), time.monotonic, time.time
        ),
        files=files,
        batches=BatchService(files, calls, time.time, config.max_body_bytes),
        live=LiveChanges(node.changes, node.is_over, started_unix_s),
        index=LiveIndex(node.for_routers.index_changes, node.is_over),
        addresses=KvAddresses(config.cluster_key, time.time),
        once=OnceByRequest(),
        kept=KeptAnswers(),
        channels=Channels(),
        page=read_page_files(),
        workflows=workflows,
        started_unix_s=started_unix_s,
    )


def _response_store(node: Node, config: ServerConfig) -> ResponseStore:
    limits = ResponseLimits(ttl_s=config.response_ttl_s, max_responses=config.max_stored_responses)

    def num_blocks(name: ModelId) -> int:
        sizes = (model.info.pool for model in node.models() if model.base == name)
        return next(pool.groups[0].num_blocks for pool in sizes)

    return ResponseStore(limits, time.monotonic, num_blocks)


def _add_layers(app: FastAPI, context: ServerContext, tenants: Sequence[TenantConfig]) -> None:
    """Add the middleware; the last one added is the outermost."""
    config = context.config
    app.add_middleware(ErrorBoundary)
    app.add_middleware(KeyMiddleware, authenticator=Authenticator(tenants))
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-quire-program-id", CLIPPED_HEADER, "retry-after"],
        )
    app.add_middleware(
        EdgeMiddleware,
        origins=OriginPolicy(config),
        max_requests=config.max_requests,
        refusals=context.metrics.requests,
    )
    app.add_middleware(AnthropicErrors)
