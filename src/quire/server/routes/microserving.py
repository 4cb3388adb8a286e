"""``/v1/microserving``: K and V move between engines by three calls (LLM microserving).

``prep_recv`` goes to the receiver, ``remote_send`` to the sender, ``start_generate`` to the node
that is to answer. A node without a cluster key answers 401.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from quire.control.statistics import EngineStatistics
from quire.node import Node
from quire.server.answers.resuming.told_tokens import TELLS_HEADER
from quire.server.completions.fields import completion_plan
from quire.server.context import caller_of, context_of
from quire.server.direct_routes import MSGPACK
from quire.server.listening.piece_writer import STATE_KEY
from quire.server.microserving.channel_frames import NAME_HEADER
from quire.server.microserving.channels import ChannelStream
from quire.server.microserving.exchanges import exchanges_of
from quire.server.microserving.live_index import IndexStream
from quire.server.own_route import OwnRoute
from quire.server.planning import begin
from quire.server.requests.strict_json import generated_of
from quire.server.schemas.base import ResponseModel, Responses, event_responses
from quire.server.schemas.completions import Completion
from quire.server.schemas.microserving import (
    CancelRequest,
    ChannelLeaveRequest,
    EngineRows,
    MicroservingEngine,
    PinAnswer,
    PinRequest,
    PrepRecvAnswer,
    PrepRecvRequest,
    PromptPages,
    PromptPagesRequest,
    RemoteSendAnswer,
    RemoteSendRequest,
    RenewAnswer,
    RenewRequest,
    StartGenerateRequest,
)

router = APIRouter(route_class=OwnRoute, tags=["microserving"])

_FRAMES: Responses = {200: {"content": {"application/octet-stream": {}}}}
_EVENTS = event_responses()


@router.post("/v1/microserving/prep_recv", response_model=PrepRecvAnswer)
async def prep_recv(request: Request, body: PrepRecvRequest) -> Response:
    """Prepare to receive the K and V of `prompt[:end]` that the prefix cache lacks."""
    return _answer(request, await exchanges_of(request).prep_recv(request, body))


@router.post("/v1/microserving/remote_send", response_model=RemoteSendAnswer)
async def remote_send(request: Request, body: RemoteSendRequest) -> Response:
    """Send K and V of `prompt[begin:end]` to an engine that has prepared for it; compute those that
    are not here. Answers when everything has arrived."""
    return _answer(request, await exchanges_of(request).remote_send(request, body))


@router.post("/v1/microserving/start_generate", response_model=Completion, responses=_EVENTS)
async def start_generate(request: Request, body: StartGenerateRequest) -> Response:
    """Compute `prompt[begin:]` and generate, as `/v1/completions` does."""
    exchanges = exchanges_of(request)

    async def begun(on_complete: Callable[[], None]) -> Response:
        taking = exchanges.take(request, body)
        plan = await completion_plan(
            request, body, num_generated=body.num_generated or 0, change=taking.into
        )
        return begin(request, plan.then(lambda _: on_complete()))

    if body.request_id is None:
        return await begun(lambda: None)
    context = context_of(request)
    return context.kept.answer(
        request,
        (caller_of(request), body.request_id),
        _asked(request, body),
        begun,
        context.config.write_timeout_s,
    )


@router.post("/v1/microserving/leases/renew", response_model=RenewAnswer)
async def renew_lease(request: Request, body: RenewRequest) -> Response:
    """Let a lease end later."""
    exchanges = exchanges_of(request)
    return _answer(request, await exchanges.renew(request, body.kv_addr_info, body.ttl_s))


@router.delete("/v1/microserving/leases", status_code=204)
async def cancel_lease(request: Request, body: CancelRequest) -> Response:
    """End a lease in any state. Its memory is free once the engine no longer writes it."""
    exchanges = exchanges_of(request)
    await exchanges.cancel(request, body.kv_addr_info, when_arrived=body.when_arrived)
    return Response(status_code=204)


@router.post("/v1/microserving/pin", response_model=PinAnswer)
async def pin(request: Request, body: PinRequest) -> Response:
    """Have what is cached of a prompt evicted after everything that has a lower price, for a
    while."""
    return _answer(request, await exchanges_of(request).pin(request, body))


@router.post("/v1/microserving/pages", response_model=PromptPages)
async def prompt_pages(request: Request, body: PromptPagesRequest) -> Response:
    """The tokens of a prompt, and the keys of its pages in prefix indexes."""
    return _answer(request, await exchanges_of(request).pages(request, body))


@router.get("/v1/microserving/index", response_class=StreamingResponse, responses=_EVENTS)
async def index(request: Request) -> Response:
    """The prefix indexes of this node's engines, as server-sent events: each whole at first, then
    its changes."""
    exchanges_of(request)  # checks the cluster key
    context = context_of(request)
    return IndexStream(context.index, context.config.write_timeout_s)


@router.get("/v1/microserving/channel", response_class=StreamingResponse, responses=_FRAMES)
async def channel(request: Request) -> Response:
    """A connection for the events of many streams: those of requests that name it in
    `x-quire-channel`. Each piece follows the stream's number and the piece's length, four bytes
    each, the lowest first; length 0: the stream goes on over its request's connection."""
    node = exchanges_of(request).node
    context = context_of(request)
    return ChannelStream(
        context.channels,
        request.headers.get(NAME_HEADER, ""),
        request.scope["state"][STATE_KEY],
        context.config.write_timeout_s,
        node.is_over,
    )


@router.post("/v1/microserving/channel/leave", status_code=204)
async def leave_channel(request: Request, body: ChannelLeaveRequest) -> Response:
    """Have a stream go on over its request's connection."""
    exchanges_of(request)  # checks the cluster key
    context_of(request).channels.leave(body.channel, body.stream)
    return Response(status_code=204)


@router.get("/v1/microserving/engines", response_model=EngineRows)
async def engines(request: Request) -> Response:
    """The engines of this node: the kind of their K and V, and their load."""
    node = exchanges_of(request).node
    found = node.statistics().controller.engines
    return _answer(request, EngineRows(engines=[_row(node, one) for one in found]))


def _asked(request: Request, body: StartGenerateRequest) -> bytes:
    """Return what identifies the content of a request to generate. A lease that was renewed in
    between is the same one."""
    telling = request.headers.get(TELLS_HEADER, "").encode()
    content = hashlib.sha256(body.model_dump_json(exclude={"request_id", "kv_addr_info"}).encode())
    if body.kv_addr_info is not None:
        content.update(context_of(request).addresses.identity(body.kv_addr_info))
    return content.digest() + hashlib.sha256(generated_of(request)).digest() + telling


def _row(node: Node, engine: EngineStatistics) -> MicroservingEngine:
    info = node.model(engine.model).info
    num_busy = engine.num_running + engine.num_waiting
    return MicroservingEngine(
        engine=engine.engine,
        epoch=engine.epoch,
        model=engine.model,
        is_up=engine.is_up,
        content=info.content,
        layout=info.layout,
        page_size=info.pool.page_size,
        max_model_len=info.max_model_len,
        num_blocks=engine.pool.num_blocks,
        free_blocks=engine.pool.num_free + engine.pool.num_cached,
        running=engine.num_running,
        waiting=engine.num_waiting,
        load=num_busy / info.pool.max_sequences,
        token_bytes=engine.pool.bytes_per_block // info.pool.page_size,
        step_s=engine.step_s,
        prompt_token_s=engine.prompt_token_s,
    )


def _answer(request: Request, answer: ResponseModel) -> Response:
    """Return JSON, or msgpack if the client accepts it."""
    if MSGPACK in request.headers.get("accept", ""):
        packed = msgspec.msgpack.encode(answer.model_dump(exclude_unset=True))
        return Response(packed, media_type=MSGPACK)
    return Response(answer.to_json(), media_type="application/json")
