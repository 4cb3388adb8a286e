"""``/v1/workflows``: the applications that the node serves, and their queries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from quire.server.schemas.base import Name, RequestModel, ResponseModel, counted_first
from quire.server.schemas.generation import Priority
from quire.server.schemas.programs import ProgramUsage
from quire.server.schemas.sessions import MAX_DEADLINE_S

ComponentName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Named = Annotated[dict[ComponentName, Any], Field(max_length=4096), counted_first(4096)]
Settings = Annotated[dict[ComponentName, Named], Field(max_length=256), counted_first(256)]


class QueryRequest(RequestModel):
    """``query``: the inputs by name; ``config``: changes to the configuration of components, by
    their names. ``GET /v1/workflows`` has the schemas of both for each application.

    ``client_id`` and ``parent`` place the query in the tenant's process table. ``priority``: as in
    vLLM, lower runs first. ``seed``: of the program's random numbers. ``deadline_s``: seconds
    after which the query ends with an error; ``max_generated_tokens``: of all its models together.
    ``speculate``: what is likely to be needed runs in spare time before it is known that it is.
    ``stream``: answer with events, as the query runs. A client that disconnects before the end ends
    the query.

    ``query_id``, or the header ``Idempotency-Key``: the node keeps what the query has done in its
    data directory, and goes on from there when it is asked again under this id, after a crash as
    well; a finished one is answered at once. ``resume``: go on with what is kept; ``query`` and
    ``config`` are left out. ``repeat_interrupted``: tools that were cut off are called again,
    although nobody knows what they have done.
    """

    query: Named | None = None
    config: Settings = Field(default_factory=dict)
    client_id: Name | None = None
    parent: Name | None = None
    priority: Priority | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = None
    max_generated_tokens: Annotated[int, Field(ge=1, lt=1 << 53)] | None = None
    speculate: bool = False
    stream: bool = False
    query_id: Name | None = None
    resume: bool = False
    repeat_interrupted: bool = False


class SpeculationUsage(ResponseModel):
    """``num_begun`` primitives ran before it was known whether they were needed; ``num_kept`` of
    them were used, ``num_dropped`` were not. ``num_dropped_tokens``: those of the generated tokens
    of ``usage`` that dropped ones have generated."""

    num_begun: int
    num_kept: int
    num_dropped: int
    num_dropped_tokens: int


class QueryResult(ResponseModel):
    """``id``: the program that answered the query. ``results`` by name. ``num_primitives``: the
    number of operations of the query; ``num_kept`` of them were not carried out again.
    ``speculation``: null unless the query speculates."""

    id: str
    object: Literal["workflow.result"]
    workflow: str
    results: dict[str, Any]
    num_primitives: int
    num_kept: int
    duration_s: float
    usage: ProgramUsage | None
    speculation: SpeculationUsage | None = None


class DeletedQuery(ResponseModel):
    """What was kept of a query is deleted. ``id``: its ``query_id``."""

    id: str
    object: Literal["workflow.query"]
    deleted: Literal[True]


class Workflow(ResponseModel):
    """``query``, ``config`` and ``results``: JSON Schemas of a query's inputs, of the configuration
    that it may change, and of its results. ``components`` in an order in which each follows those
    that it needs."""

    name: str
    object: Literal["workflow"]
    description: str
    components: list[str]
    query: dict[str, Any]
    config: dict[str, Any]
    results: dict[str, Any]


class WorkflowList(ResponseModel):
    object: Literal["list"]
    data: list[Workflow]
