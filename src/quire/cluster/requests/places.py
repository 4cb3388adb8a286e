"""Where a request belongs: a pure function of its method, path, headers and body.

Owns the table of the API's paths. Nothing here depends on what a router has seen before, so that
every router places a request in the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from quire.cluster.requests.request import Request

NODE_HEADER = b"x-quire-node"


@dataclass(frozen=True, slots=True)
class AnyNode:
    """Any engine with the model: the strategy chooses."""


@dataclass(frozen=True, slots=True)
class SessionHome:
    """The home of session ``session``."""

    session: str


@dataclass(frozen=True, slots=True)
class HoldingNode:
    """The node that holds ``name``: it answers one of the paths ``lookups``. If no node does, the
    request goes to the home of ``otherwise``, or to any node, which refuses it."""

    name: str
    lookups: tuple[str, ...]
    otherwise: str | None = None


@dataclass(frozen=True, slots=True)
class LeastBusyNode:
    """The node with the lowest load. ``is_stored``: the node stores what the request makes, so that
    the request must not reach two nodes."""

    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class AllNodes:
    """All nodes."""


@dataclass(frozen=True, slots=True)
class MergedLists:
    """The lists of all nodes as one. ``is_paged``: clients page it with ``after`` and ``limit``."""

    is_paged: bool = True


@dataclass(frozen=True, slots=True)
class NamedNode:
    """The node that the client has named."""

    node: str


@dataclass(frozen=True, slots=True)
class NotRouted:
    """No router answers the request; ``remedy`` says how to ask instead."""

    remedy: str


Place = (
    AnyNode
    | SessionHome
    | HoldingNode
    | LeastBusyNode
    | AllNodes
    | MergedLists
    | NamedNode
    | NotRouted
)

_RESPONSES = frozenset({"/v1/responses", "/v1/responses/input_tokens"})
_GENERATING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        *_RESPONSES,
        "/v1/messages",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
    }
)
_STORED = re.compile(r"/v1/(responses|conversations|files|batches|sessions|programs)/([^/]+)(/.*)?")
_NAMED_BY_NODE = re.compile(r"(prog|session)-[0-9a-f]{24}")
"""Names that a node has assigned: which node it was cannot be computed from them."""

_LISTS = {
    "/v1/models": MergedLists(is_paged=False),
    "/v1/programs": MergedLists(is_paged=False),
    "/v1/sessions": MergedLists(),
    "/v1/files": MergedLists(),
    "/v1/batches": MergedLists(),
}
_ASK_A_NODE = (
    "a router does not put it together: ask one node, by its address or with the header "
    "x-quire-node; GET /router/engines lists them"
)
_QUERY = re.compile(r"/v1/workflows/[^/]+/query")
_KEPT_QUERY = re.compile(r"/v1/workflows/[^/]+/queries/([^/]+)")
_LIVE = "/v1/programs/changes"
_LIBRARY = "/v1/programs/library"
_UPLOADS = "/v1/programs/uploads"


def place_of(request: Request) -> Place:
    """Return where ``request`` belongs."""
    path = request.path
    for name, value in request.headers:
        if name == NODE_HEADER:
            return NamedNode(value.decode("latin-1"))
    if request.method == "POST" and path in _GENERATING:
        return _of_work(request)
    if path in (_LIVE, "/ui") or path.startswith(("/ui/", "/v1/microserving/")):
        return NotRouted(_ASK_A_NODE)
    if path == _LIBRARY:
        return LeastBusyNode()
    if path == _UPLOADS or path.startswith(f"{_UPLOADS}/"):
        return LeastBusyNode() if request.method == "GET" else AllNodes()
    if request.method in ("GET", "HEAD") and path in _LISTS:
        return _LISTS[path]
    stored = _STORED.fullmatch(path)
    if stored is not None:
        return _holder(stored[1], stored[2])
    return _of_making(request)


def _of_work(request: Request) -> Place:
    if previous := request.text_of("previous_response_id"):
        return _holder("responses", quote(previous, safe=""))
    if request.path in _RESPONSES and (conversation := request.conversation()):
        return _holder("conversations", quote(conversation, safe=""))
    if request.path in _RESPONSES and (item := request.referenced_item()):
        return _holder_of_item(item)
    session = request.session
    if session is None:
        return AnyNode()
    if _NAMED_BY_NODE.fullmatch(session):
        return HoldingNode(session, (f"/v1/sessions/{session}",), otherwise=session)
    return SessionHome(session)


def _of_making(request: Request) -> Place:
    if request.method == "DELETE" and (deleted := _KEPT_QUERY.fullmatch(request.path)):
        return SessionHome(unquote(deleted[1]))
    if request.method != "POST":
        return LeastBusyNode()
    if request.path == "/v1/sessions" and (session := request.text_of("id")):
        return SessionHome(session)
    if request.path == "/v1/conversations" and (item := request.referenced_item()):
        return _holder_of_item(item)
    if request.path == "/v1/batches" and (file := request.text_of("input_file_id")):
        return _holder("files", quote(file, safe=""))
    is_query = _QUERY.fullmatch(request.path) is not None
    if is_query and (kept_as := _query_id(request)):
        return SessionHome(kept_as)
    is_launch = is_query or request.path == "/v1/programs"
    if is_launch and (parent := request.text_of("parent")):
        return _holder("programs", quote(parent, safe=""))
    kept = ("/v1/programs", "/v1/files", "/v1/conv", "/v1/sess")
    return LeastBusyNode(is_stored=is_query or request.path.startswith(kept))


def _query_id(request: Request) -> str | None:
    """Return the id under which a node keeps the results of the query, as the node reads it."""
    given = request.text_of("query_id")
    if given:
        return given
    keys = (value for name, value in request.headers if name == b"idempotency-key")
    return next((value.decode("latin-1") for value in keys), None)


def _holder(kind: str, name: str) -> HoldingNode:
    """Return the place of ``name``, which is quoted as in a path."""
    return HoldingNode(
        name, program_lookups(name) if kind == "programs" else (f"/v1/{kind}/{name}",)
    )


def _holder_of_item(item: str) -> HoldingNode:
    """Return the place of ``item``: the node that stores a response with it."""
    return HoldingNode(item, (f"/v1/microserving/items/{quote(item, safe='')}",))


def program_lookups(name: str) -> tuple[str, ...]:
    """Return the paths at which a node answers if it has the program ``name``, which is quoted as
    in a path. A session is a program of the process table, too."""
    return (f"/v1/programs/{name}", f"/v1/sessions/{name}")
