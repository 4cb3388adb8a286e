"""``/v1/microserving/programs``: restartable programs move from node to node.

A router stops a program at one node (``hand_over``), gives its record to another one, and reports
to the first whether it was taken. It also keeps the records that a node sends of its programs, and
gives those of a lost node to another one. Like the calls beside them, these routes need the
cluster's key.
"""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.core.errors import AlreadyExists, InvalidArgument, UnknownHandle
from quire.core.record_parts import RecordsWanted
from quire.node.programs.restarting.family_move import (
    check_family,
    family_leaves,
    family_stays,
    packed_family,
    running_family,
)
from quire.node.programs.restarting.handing_over import HandedProgram, unpacked
from quire.node.programs.restarting.told_family import program_of
from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY
from quire.programs.sandbox.program import GuestProgram
from quire.server.answers.disconnects import while_connected
from quire.server.context import ServerContext, caller_of, context_of
from quire.server.direct_routes import MSGPACK
from quire.server.errors.errors import HttpError
from quire.server.errors.refusals import mark_usual
from quire.server.own_route import OwnRoute
from quire.server.programs.records import launched
from quire.server.programs.upload import native_program
from quire.server.routes.programs import PublicId
from quire.server.schemas.base import Responses
from quire.server.schemas.microserving import (
    HandedOver,
    HeldText,
    HeldTexts,
    RecordsQuestion,
)
from quire.server.schemas.programs import Program

router = APIRouter(route_class=OwnRoute, tags=["microserving"])

_MAX_TOKENS = 1 << 20
"""The most tokens of the texts of one program; the longest texts come first."""

_RECORD: Responses = {200: {"content": {MSGPACK: {"schema": {"type": "string"}}}}}


@router.post("/v1/microserving/programs", response_model=Program, status_code=201)
async def take_program(request: Request) -> Response:
    """Go on with a program of another node: the body is the answer of its `hand_over`."""
    _of_cluster(request)
    return await _taken(request, unpacked(await request.body()))


@router.post("/v1/microserving/programs/lost", response_model=Program, status_code=201)
async def take_lost(request: Request) -> Response:
    """Go on with a program whose node is lost, and with its descendants: the body has, in msgpack,
    the parts of their record that `records` of that node has returned."""
    _of_cluster(request)
    try:
        parts = msgspec.msgpack.decode(await request.body(), type=list[bytes])
    except msgspec.MsgspecError as exc:
        raise InvalidArgument(f"the body must be a list of bytes, in msgpack: {exc}") from exc
    return await _taken(request, program_of(parts))


@router.post("/v1/microserving/records", responses=_RECORD, response_class=Response)
async def records(request: Request, body: RecordsQuestion) -> Response:
    """What is new in the records of the caller's restartable programs, in msgpack; waits until
    there is something. The next request acknowledges the answer, and what the programs send to
    their clients waits for that."""
    asked = RecordsWanted(body.reader, body.feed, body.number, body.gone)
    node, tenant = _of_cluster(request).node, caller_of(request)
    telling = asyncio.create_task(node.for_routers.told_records(asked, tenant))

    def give_up(has_disconnected: bool) -> None:
        if has_disconnected:
            node.for_routers.left_records(body.reader, tenant)

    if await while_connected(telling, request.receive, on_cancel=give_up) != "ended":
        mark_usual(request.scope)  # a router that ends
        raise HttpError(499, "the client has disconnected")
    try:
        told = telling.result()
    except AlreadyExists:
        mark_usual(request.scope)  # every other router asks every second, to take over in time
        raise
    return Response(msgspec.msgpack.encode(told), media_type=MSGPACK)


@router.post(
    "/v1/microserving/programs/{program}/hand_over", responses=_RECORD, response_class=Response
)
async def hand_over(request: Request, program: PublicId) -> Response:
    """Stop a restartable program and its children, so that another node can go on with them: the
    answer is their code and their records, in msgpack. `handed_over` must follow."""
    handle = _of_cluster(request).node.program(program, caller_of(request))
    return Response(await packed_family(handle), media_type=MSGPACK)


@router.get("/v1/microserving/programs/{program}/texts", response_model=HeldTexts)
async def texts(request: Request, program: PublicId) -> Response:
    """The texts whose pages a program holds that can move: the router sends the pages ahead."""
    node = _of_cluster(request).node
    handle = node.program(program, caller_of(request))
    check_family(handle)
    ids = {(model.base, model.adapter): model.id for model in node.models()}
    found = [
        HeldText(model=ids[text.model, text.adapter], tokens=list(text.tokens))
        for one in running_family(handle)
        for text in node.for_routers.held_texts(one, _MAX_TOKENS)
        if (text.model, text.adapter) in ids
    ]
    return Response(HeldTexts(texts=found).to_json(), media_type="application/json")


@router.post("/v1/microserving/programs/{program}/handed_over", status_code=204)
async def handed_over(request: Request, program: PublicId, body: HandedOver) -> Response:
    """Report whether another node goes on with the program. If so, it is dropped here, and its
    clients are notified; else it begins again here."""
    handle = _of_cluster(request).node.program(program, caller_of(request))
    if body.is_taken:
        family_leaves(handle)
    else:
        family_stays(handle)
    return Response(status_code=204)


def _of_cluster(request: Request) -> ServerContext:
    context = context_of(request)
    context.addresses.check_sender(request.headers)
    return context


async def _taken(request: Request, handed: HandedProgram) -> Response:
    context = context_of(request)
    programs = {one.id: await _program_of(request, one) for one in handed.family()}
    handle = context.node.for_routers.take(programs, handed, caller_of(request))
    body = launched(handle.record(), None)
    return Response(body.to_json(), 201, media_type="application/json")


async def _program_of(request: Request, handed: HandedProgram) -> Inferlet | GuestProgram:
    context = context_of(request)
    if handed.is_native:
        if not context.config.allow_native_upload:
            raise InvalidArgument(
                f"program {handed.name!r} runs outside the sandbox, where this node runs no source "
                "of clients: start every node with --allow-upload, or push the program"
            )
        return await asyncio.to_thread(native_program, handed.code.decode("utf-8", "surrogatepass"))
    if handed.code:
        return await context.node.inspect(handed.code)
    found = LIBRARY.get(handed.name)
    if found is None:
        raise UnknownHandle(
            f"program {handed.name!r} is not in the library of this node: both nodes must be of "
            "the same release"
        )
    return found
