"""``/v1/workflows``: the applications that the node serves, and queries of them.

A query is refused before any work if that is possible: for its inputs and configuration, and for
engines that the node lacks. After that it is a program of its tenant like any other.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from quire.core.errors import InvalidArgument, ModelNotFound, ProgramFailed
from quire.core.ids import TenantId
from quire.node import Node, ProgramHandle
from quire.programs.workflow import App
from quire.programs.workflow.durable import QueryId
from quire.programs.workflow.query import Query
from quire.programs.workflow.runners import ENCODER_KINDS
from quire.programs.workflow.template.schema import config_schema, query_schema, results_schema
from quire.server.answers.waiting import wait_ended
from quire.server.context import caller_of, context_of
from quire.server.own_route import OwnRoute
from quire.server.programs.query_events import QueryEvents
from quire.server.programs.records import usage_body
from quire.server.requests.hints import priority_in_range, tell_clipped
from quire.server.schemas.base import event_responses
from quire.server.schemas.workflows import (
    DeletedQuery,
    QueryRequest,
    QueryResult,
    SpeculationUsage,
    Workflow,
    WorkflowList,
)

router = APIRouter(route_class=OwnRoute, tags=["workflows"])

WorkflowName = Annotated[str, Path(max_length=256, description="The `name` of a workflow")]
KeptName = Annotated[str, Path(max_length=256, description="The `query_id` of a query")]

_EVENTS = event_responses()


@router.get("/v1/workflows", response_model=WorkflowList)
async def list_workflows(request: Request) -> Response:
    """The workflows that this node serves, with the schemas of their queries."""
    served = context_of(request).workflows
    listed = [_described(served[name].app) for name in served]
    return _json(WorkflowList(object="list", data=listed))


@router.post("/v1/workflows/{workflow}/query", response_model=QueryResult, responses=_EVENTS)
async def query_workflow(request: Request, workflow: WorkflowName, body: QueryRequest) -> Response:
    """Answer a query. With `stream` the answer is server-sent events while the query runs: its
    primitives, the text of its results, its end; then `[DONE]`."""
    context = context_of(request)
    served = context.workflows.find(workflow)
    query = served.query(
        body.query,
        body.config,
        tells=body.stream,
        deadline_s=body.deadline_s,
        max_generated_tokens=body.max_generated_tokens,
        name=_name(request, body),
        speculate=body.speculate,
    )
    await _prepare(query, body)
    tenant = caller_of(request)
    _check_engines(context.node, query, tenant)
    handle = context.node.launch(
        query.program(),
        tenant=tenant,
        client_id=body.client_id,
        priority=-priority_in_range(body.priority),
        parent=body.parent,
        seed=body.seed,
        traceparent=request.headers.get("traceparent"),
    )

    result = partial(_result, query, handle)
    if body.stream:
        events = QueryEvents(workflow, handle, result, context.config.write_timeout_s)
        return tell_clipped(events, body)
    await wait_ended(request, handle)
    return tell_clipped(_json(await result()), body)


@router.delete("/v1/workflows/{workflow}/queries/{query_id:path}", response_model=DeletedQuery)
async def delete_query(request: Request, workflow: WorkflowName, query_id: KeptName) -> Response:
    """Delete what is kept of a query that was given an id. While the query is being answered this
    is refused with 503."""
    context = context_of(request)
    context.workflows.find(workflow)
    await context.node.forget_query(workflow, query_id, caller_of(request))
    return _json(DeletedQuery(id=query_id, object="workflow.query", deleted=True))


def _name(request: Request, body: QueryRequest) -> QueryId | None:
    """Return the query's id, if it has one. Raises ``InvalidArgument`` if a field is given that
    needs an id."""
    key = body.query_id or request.headers.get("idempotency-key")
    if key is not None:
        return QueryId(key, body.resume, body.repeat_interrupted)
    for field in ("resume", "repeat_interrupted"):
        if getattr(body, field):
            raise InvalidArgument(f"{field} is for a query with an id: give its query_id too",
                                  param=field)  # fmt: skip
    return None


async def _prepare(query: Query, body: QueryRequest) -> None:
    """Prepare the query. Raises ``InvalidArgument``, whose field is named as in the body."""
    try:
        await query.prepared()
    except InvalidArgument as exc:
        field = exc.details.get("param")
        if not isinstance(field, str) or field == "passes":  # a pass of the application's developer
            raise
        is_input = _is_input(query, field) or _top(field) in (body.query or {})
        where = "query" if is_input else "config"
        raise InvalidArgument(exc.message, param=f"{where}.{field}") from exc


def _is_input(query: Query, field: object) -> bool:
    return isinstance(field, str) and _top(field) in query.app.query_inputs


def _top(field: str) -> str:
    return field.split(".")[0].split("[")[0]


def _check_engines(node: Node, query: Query, tenant: TenantId) -> None:
    """Check that the node has the engines of the query. Raises as the routes of completions and
    embeddings do if a model does not exist or is not loaded yet, and if the tenant has no search
    engine."""
    for engine in query.app.used_engines:
        if engine.kind in ENCODER_KINDS:
            encoder = node.encoder(engine.config.get("model"), ENCODER_KINDS[engine.kind])
            _ = encoder.info  # raises unless it is loaded
        elif engine.kind == "llm" and engine.endpoint is None:
            node.model(engine.config.get("model"))
        elif engine.kind == "search":
            node.search_engine(tenant)
    for component, model in query.models.items():
        try:
            node.model(model)
        except ModelNotFound as exc:
            raise ModelNotFound(exc.message, param=f"config.{component}.model") from exc


async def _result(query: Query, handle: ProgramHandle) -> QueryResult:
    """Return the results of the query, or raise why it has none: after a failure the exception of
    the query itself, which names the field or the engine."""
    try:
        results = await handle.result()
    except ProgramFailed as exc:
        error = query.error
        if isinstance(error, InvalidArgument) and _is_input(query, error.details.get("param")):
            raise InvalidArgument(error.message, param=f"query.{error.details['param']}") from exc
        raise error or exc from exc
    record = handle.record()
    return QueryResult(
        id=record.id,
        object="workflow.result",
        workflow=query.app.name,
        results=results,
        num_primitives=query.num_primitives,
        num_kept=query.num_kept,
        duration_s=record.duration_s or 0.0,
        usage=usage_body(record),
        speculation=SpeculationUsage(**asdict(query.speculation)) if query.speculates else None,
    )


def _described(app: App) -> Workflow:
    return Workflow(
        name=app.name,
        object="workflow",
        description=app.description,
        components=[node.name for node in app.nodes],
        query=query_schema(app),
        config=config_schema(app),
        results=results_schema(app),
    )


def _json(body: WorkflowList | QueryResult | DeletedQuery) -> Response:
    return Response(body.to_json(), media_type="application/json")
