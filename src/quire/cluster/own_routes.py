"""The router's own routes: its health, its metrics, its nodes and its strategy.

Owns who may read and change them. Must not know how requests are placed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.metrics import RouterMetrics
from quire.cluster.nodes.addresses import NodeAddress, read_addresses
from quire.cluster.passing.moving import AnswerMoves
from quire.cluster.passing.program_moves import ProgramMoves
from quire.cluster.refusing import refuse
from quire.cluster.requests.reading import read_request
from quire.cluster.routing.running import RunningStrategy, StrategyTerm
from quire.cluster.routing.strategy import DEFAULT_NAME, MAX_SOURCE_BYTES, StrategySource
from quire.cluster.strategies import SHIPPED
from quire.core.config import ServerConfig
from quire.core.errors import (
    ConfigError,
    Forbidden,
    InvalidArgument,
    QuireError,
    Unauthorized,
    UnknownHandle,
)
from quire.server.errors.errors import RETRY_AFTER_S, HttpError, wrong_method
from quire.server.requests.query_names import check_query
from quire.server.security import OPEN_PATHS

_PREFIX = "/router/"


class StrategyChange(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``PUT /router/strategy``: the ``name`` of a shipped strategy, or a ``source``
    with the ``name`` of the function or class in it. ``options`` are arguments of the class."""

    name: str | None = None
    source: str | None = None
    options: dict[str, Any] = {}


class NodesChange(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``PUT /router/nodes``: each node is written as for ``--node``."""

    nodes: list[str]


class AdminKey:
    """Decides who may use ``/router``. With a key: those who send it. Without one: everyone may
    read, and nobody may change anything."""

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else _digest(key)

    def check(self, headers: Headers, *, changes: bool) -> None:
        """Raise ``Forbidden`` or ``Unauthorized`` if the request may not be made."""
        if self._digest is None:
            if changes:
                raise Forbidden(
                    "the router has no admin key: start it with --admin-key-file to exchange its "
                    "strategy (which is code that it runs) or its nodes, or to drain nodes, over "
                    "HTTP"
                )
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = token.strip() if scheme.lower() == "bearer" else ""
        if not hmac.compare_digest(_digest(sent), self._digest):
            raise Unauthorized(
                "/router asks for the router's admin key: send it as 'Authorization: Bearer KEY'"
            )


class OwnRoutes:
    """The layer around ``app`` that answers the router's own paths."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        fleet: Fleet,
        strategy: RunningStrategy,
        moves: AnswerMoves,
        program_moves: ProgramMoves,
        metrics: RouterMetrics,
        admin: AdminKey,
        config: ServerConfig,
    ) -> None:
        self._app = app
        self._fleet = fleet
        self._strategy = strategy
        self._moves = moves
        self._program_moves = program_moves
        self._metrics = metrics
        self._admin = admin
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path in _OWN or path.startswith(_PREFIX)):
            await self._app(scope, receive, send)
            return
        try:
            response = await self._answer(scope, receive)
        except (QuireError, HttpError) as error:
            await refuse(error, scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path, method = scope["path"], scope["method"]
        if path.startswith(_PREFIX):
            self._admin.check(Headers(scope=scope), changes=method not in ("GET", "HEAD"))
            check_query(QueryParams(scope["query_string"]), ())
        draining = _DRAIN.fullmatch(path)
        _check_method(path, method, _OWN.get(path) if draining is None else ("POST", "DELETE"))
        if draining is not None:
            return await self._drain(draining[1], is_on=method == "POST")
        if method == "PUT":
            sent = await read_request(scope, receive, self._config)
            return JSONResponse(await self._changed(path, sent.body))
        return self._shown(path)

    def _shown(self, path: str) -> Response:
        if path in OPEN_PATHS:
            return self._health(is_ready_wanted=path != "/health")
        if path == "/metrics":
            return Response(
                self._metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8"
            )
        if path == "/router/engines":
            return JSONResponse({"engines": [_described(engine) for engine in self._fleet.engines]})
        if path == "/router/nodes":
            return JSONResponse(self._described_nodes())
        return JSONResponse(self._described_strategy())

    async def _changed(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/router/nodes":
            return await self._change_nodes(body)
        await self._strategy.change(_source(body))
        return self._described_strategy()

    async def _change_nodes(self, body: bytes) -> dict[str, Any]:
        """Change the nodes; work of those that leave moves to other nodes now, where it can."""
        gone = await self._fleet.change(_addresses(body))
        num_moved = sum([await self._moves.empty(engine) for engine in gone])
        left = [await self._program_moves.empty(engine) for engine in gone]
        return {
            **self._described_nodes(),
            "num_moved": num_moved,
            "num_programs_moved": sum(one.num_moved for one in left),
        }

    def _described_nodes(self) -> dict[str, Any]:
        addresses = [engine.node.address for engine in self._fleet.engines]
        return {
            "nodes": [f"{address.name}={address.url}" for address in addresses],
            "leaving": [_described(engine) for engine in self._fleet.leaving],
        }

    async def _drain(self, name: str, *, is_on: bool) -> Response:
        """Give the node no new work if ``is_on``, and move away now what can move; else end
        this."""
        engine = self._fleet.named(name)
        if engine is None:
            raise UnknownHandle(f"no node {name[:100]!a} here: GET /router/engines lists them")
        engine.node.is_draining = is_on
        if not is_on:
            return JSONResponse({**_described(engine), "num_moved": 0})
        num_moved = await self._moves.empty(engine)
        left = await self._program_moves.empty(engine)
        programs = {
            "num_programs_moved": left.num_moved,
            "num_program_tokens_sent": left.num_tokens_sent,
            "programs_that_stay": left.stay,
        }
        return JSONResponse({**_described(engine), "num_moved": num_moved, **programs})

    def _health(self, *, is_ready_wanted: bool) -> Response:
        """Answer whether the router is alive, which it is while it answers, or ready: it is ready
        while a node takes work."""
        engines = self._fleet.engines
        num_ready = sum(engine.node.takes_work for engine in engines)
        num_alive = sum(engine.node.liveness.is_alive for engine in engines)
        unreached = [one.name for one in engines if one.node.liveness.state == "not reached yet"]
        detail = f"{num_ready} of {len(engines)} nodes take work, {num_alive} are alive"
        if unreached:
            detail += f", not reached yet: {', '.join(unreached)}"
        body = {"status": "ok" if num_ready else "no node", "detail": detail}
        if num_ready or not is_ready_wanted:
            return JSONResponse(body)
        return JSONResponse(body, 503, {"retry-after": str(RETRY_AFTER_S)})

    def _described_strategy(self) -> dict[str, Any]:
        current = self._strategy.current
        return {
            **_shift(current),
            "source": current.strategy.source.text,
            "refused_change": self._strategy.refusal,
            "withdrawn": self._strategy.withdrawal,
            "leaving": [_shift(shift) for shift in self._strategy.leaving],
            "shipped": sorted(SHIPPED),
        }


_OWN = {
    "/health": ("GET", "HEAD"),
    "/ready": ("GET", "HEAD"),
    "/ping": ("GET", "HEAD", "POST"),
    "/metrics": ("GET",),
    "/router/engines": ("GET",),
    "/router/nodes": ("GET", "PUT"),
    "/router/strategy": ("GET", "PUT"),
}
"""The paths with their methods."""

_MAX_NODES_BYTES = 1 << 20

_DRAIN = re.compile(r"/router/nodes/([^/]+)/drain")


def _check_method(path: str, method: str, allowed: tuple[str, ...] | None) -> None:
    """Raise ``HttpError``: 404 if nothing is ``allowed`` for the path, 405 for another method."""
    if allowed is None:
        raise HttpError(404, f"no route {method} {path}: there are {', '.join(_OWN)}")
    if method not in allowed:
        allow = ", ".join(allowed)
        raise HttpError(405, wrong_method(method, path, allow), headers={"allow": allow})


def _addresses(body: bytes) -> tuple[NodeAddress, ...]:
    if len(body) > _MAX_NODES_BYTES:
        raise InvalidArgument(f"the nodes of a router have at most {_MAX_NODES_BYTES} bytes")
    try:
        return read_addresses(msgspec.json.decode(body, type=NodesChange).nodes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidArgument(
            'the body must be {"nodes": ["http://127.0.0.1:8001", "b=http://127.0.0.1:8002"]}: '
            f"{exc}"
        ) from exc
    except ConfigError as exc:
        raise InvalidArgument(exc.message, param="nodes") from exc


def _source(body: bytes) -> StrategySource:
    if len(body) > MAX_SOURCE_BYTES:
        raise InvalidArgument(f"a strategy has at most {MAX_SOURCE_BYTES} bytes")
    try:
        change = msgspec.json.decode(body, type=StrategyChange)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidArgument(
            f"the body must be a JSON object with a shipped strategy's name, or a source: {exc}"
        ) from exc
    if change.source is not None:
        return StrategySource(change.name or DEFAULT_NAME, change.source, options=change.options)
    if change.name not in SHIPPED:
        raise InvalidArgument(
            f"no strategy {str(change.name)[:200]!r} is shipped: name one of "
            f"{', '.join(sorted(SHIPPED))}, or send its source",
            param="name",
        )
    return StrategySource(change.name, options=change.options)


def _shift(shift: StrategyTerm) -> dict[str, Any]:
    source = shift.strategy.source
    path: Path | None = source.path
    return {
        "name": source.name,
        "file": None if path is None else str(path),
        "options": dict(source.options),
        "since": int(shift.since_unix_s),
        "num_running": shift.num_running,
        "num_failed": shift.num_failed,
    }


def _described(engine: NodeEngine) -> dict[str, Any]:
    node = engine.node
    figures = node.figures
    return {
        "name": engine.name,
        "url": node.address.url,
        "state": node.liveness.state,
        "draining": node.is_draining,
        "detail": node.liveness.reason,
        "models": list(figures.models),
        "unready_models": sorted(node.unready_models),
        "load": node.load,
        "num_outstanding": node.num_outstanding,
        "queue": figures.num_waiting,
        "num_blocks": figures.num_blocks,
        "num_free_blocks": figures.num_free_blocks,
        "epoch": figures.epoch,
    }


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
