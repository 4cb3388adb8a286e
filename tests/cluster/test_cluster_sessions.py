"""Sessions and stored things find their node again, through any router, with nothing remembered."""

from __future__ import annotations

import inspect
import re

import pytest
from router_world import World, world
from starlette.datastructures import Headers

from quire.cluster.nodes.addresses import read_addresses
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.requests.places import (
    AllNodes,
    AnyNode,
    HoldingNode,
    LeastBusyNode,
    MergedLists,
    NamedNode,
    NotRouted,
    Place,
    SessionHome,
    place_of,
)
from quire.cluster.requests.rendezvous import by_preference
from quire.cluster.requests.request import Request
from quire.server.requests import identity
from quire.server.requests.identity import NAMING_HEADERS
from quire.server.schemas.generation import IdentityFields

PROGRAM = "prog-0123456789abcdef01234567"
SESSION = "session-0123456789abcdef01234567"


def place(
    method: str, target: str, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Place:
    return place_of(Request(method, target, headers, body, "r"))


def holder(kind: str, name: str) -> HoldingNode:
    return HoldingNode(name, (f"/v1/{kind}/{name}",))


@pytest.mark.parametrize(
    ("method", "target", "body", "expected"),
    [
        ("POST", "/v1/completions", b'{"prompt": "x"}', AnyNode()),
        ("POST", "/v1/embeddings", b"not json", AnyNode()),
        ("POST", "/v1/chat/completions", b'{"session_id": "s"}', SessionHome("s")),
        ("POST", "/v1/chat/completions", b'{"session_id": 7}', AnyNode()),
        ("POST", "/v1/responses", b'{"conversation": "c"}', holder("conversations", "c")),
        ("POST", "/v1/responses", b'{"conversation": {"id": "c"}}', holder("conversations", "c")),
        ("POST", "/v1/responses", b'{"previous_response_id": "r"}', holder("responses", "r")),
        (
            "POST",
            "/v1/responses/input_tokens",
            b'{"previous_response_id": "r"}',
            holder("responses", "r"),
        ),
        ("POST", "/v1/responses/input_tokens", b'{"input": "x"}', AnyNode()),
        (
            "POST",
            "/v1/responses",
            b'{"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "m"}]}',
            holder("microserving/items", "m"),
        ),
        ("POST", "/v1/responses", b'{"input": [{"id": "m"}]}', holder("microserving/items", "m")),
        (
            "POST",
            "/v1/conversations",
            b'{"items": [{"id": "a/b", "type": "item_reference"}]}',
            HoldingNode("a/b", ("/v1/microserving/items/a%2Fb",)),
        ),
        (
            "POST",
            "/v1/responses",
            b'{"previous_response_id": "r", "input": [{"id": "m"}]}',
            holder("responses", "r"),
        ),
        ("POST", "/v1/responses", b'{"input": [{"role": "user", "id": "m"}, 7]}', AnyNode()),
        ("POST", "/v1/responses", b'{"input": [{"id": 7}, {"id": ""}]}', AnyNode()),
        ("GET", "/v1/responses/r?stream=true", b"", holder("responses", "r")),
        ("POST", "/v1/responses/r/cancel", b"", holder("responses", "r")),
        ("GET", "/v1/conversations/c/items/i", b"", holder("conversations", "c")),
        ("POST", "/v1/batches", b'{"input_file_id": "f"}', holder("files", "f")),
        ("GET", "/v1/files/f/content", b"", holder("files", "f")),
        (
            "DELETE",
            "/v1/programs/p",
            b"",
            HoldingNode("p", ("/v1/programs/p", "/v1/sessions/p")),
        ),
        (
            "POST",
            "/v1/programs",
            b'{"parent": "a/b"}',
            HoldingNode("a%2Fb", ("/v1/programs/a%2Fb", "/v1/sessions/a%2Fb")),
        ),
        ("POST", "/v1/programs", b'{"program": "x"}', LeastBusyNode(is_stored=True)),
        ("POST", "/v1/workflows/naive-rag/query", b'{"query": {}}', LeastBusyNode(is_stored=True)),
        (
            "POST",
            "/v1/workflows/naive-rag/query",
            b'{"query": {}, "parent": "p"}',
            HoldingNode("p", ("/v1/programs/p", "/v1/sessions/p")),
        ),
        (
            "POST",
            "/v1/workflows/naive-rag/query",
            b'{"query": {}, "parent": "p", "query_id": "q/1"}',
            SessionHome("q/1"),
        ),
        ("DELETE", "/v1/workflows/naive-rag/queries/q%2F1", b"", SessionHome("q/1")),
        ("GET", "/v1/workflows", b"", LeastBusyNode()),
        ("POST", "/v1/sessions", b'{"id": "s"}', SessionHome("s")),
        ("POST", "/v1/sessions", b"{}", LeastBusyNode(is_stored=True)),
        ("GET", "/v1/sessions", b"", MergedLists()),
        ("GET", "/v1/models", b"", MergedLists(is_paged=False)),
        ("GET", "/v1/models/org/name", b"", LeastBusyNode()),
        ("POST", "/tokenize", b'{"prompt": "x"}', LeastBusyNode()),
        ("POST", "/v1/programs/uploads", b"{}", AllNodes()),
        ("GET", "/v1/programs/uploads", b"", LeastBusyNode()),
        ("GET", "/v1/programs/library", b"", LeastBusyNode()),
    ],
)
def test_where_a_request_belongs(method: str, target: str, body: bytes, expected: Place) -> None:
    assert place(method, target, body) == expected


def test_a_key_names_the_home_of_a_query() -> None:
    key = ((b"idempotency-key", b"q"),)
    assert place("POST", "/v1/workflows/rag/query", b'{"query": {}}', key) == SessionHome("q")
    assert place("POST", "/v1/programs", b'{"program": "x"}', key) == LeastBusyNode(is_stored=True)


def test_headers_name_sessions_and_nodes() -> None:
    assert len(NAMING_HEADERS) == 6
    for name in NAMING_HEADERS:
        assert place("POST", "/v1/messages", b"{}", ((name.encode(), b"s"),)) == SessionHome("s")
    assert place("POST", "/v1/messages", b"{}", ((b"x-quire-node", b"n"),)) == NamedNode("n")
    assert isinstance(place("GET", "/v1/programs/changes"), NotRouted)


def test_no_other_header_names_a_session() -> None:
    source = inspect.getsource(identity)
    read = set(re.findall(r'reader\.(?:name|flag)\("([^"]+)"\)', source))
    assert read > NAMING_HEADERS
    for name in read - NAMING_HEADERS:
        assert place("POST", "/v1/messages", b"{}", ((name.encode(), b"1"),)) == AnyNode()
        found = identity.identify(Headers({name: "1"}), IdentityFields())
        assert found.client_id is None, name


@pytest.mark.parametrize("name", [PROGRAM, SESSION])
def test_a_name_that_a_node_has_given_is_looked_up(name: str) -> None:
    found = place("POST", "/v1/messages", b"{}", ((b"x-quire-program-id", name.encode()),))
    assert found == HoldingNode(name, (f"/v1/sessions/{name}",), otherwise=name)


def test_a_lost_node_moves_only_its_own_sessions() -> None:
    nodes = [RoutedNode(one) for one in read_addresses([f"n{i}=http://h{i}:1" for i in range(8)])]
    keys = [f"session {i}" for i in range(400)]
    homes = {key: by_preference(key, nodes)[0] for key in keys}
    assert len(set(homes.values())) == 8
    left = nodes[1:]
    for key in keys:
        assert by_preference(key, left)[0] is homes[key] or homes[key] is nodes[0]


def test_routers_of_other_releases_find_the_same_home() -> None:
    """The order is BLAKE2b's of "7:session" and the node's name, the largest first."""
    nodes = [
        RoutedNode(one) for one in read_addresses([f"{name}=http://{name}:1" for name in "abcd"])
    ]
    assert [node.name for node in by_preference("session", nodes)] == ["c", "d", "a", "b"]


async def _homes(w: World) -> list[str]:
    answers = [await w.complete(headers={"x-session-id": f"s{i}"}) for i in range(12)]
    return [answer.headers["x-quire-node"] for answer in answers]


async def test_routers_agree_about_a_sessions_home() -> None:
    async with world(3) as first, world(nodes=first.nodes, strategy="least_used") as second:
        homes = await _homes(first)
        assert len(set(homes)) == 3
        assert await _homes(second) == homes
        assert await _homes(first) == homes


async def test_a_session_leaves_a_lost_node_and_returns() -> None:
    async with world(3) as w:
        homes = await _homes(w)
        await w.nodes[0].peer.die()
        moved = await _homes(w)
        assert all(now == then for now, then in zip(moved, homes, strict=True) if then != "node-0")
        assert "node-0" not in moved
        await w.probe(2)
        await w.nodes[0].peer.listen()
        await w.probe(2)
        assert await _homes(w) == homes


@pytest.mark.parametrize("number", [0, 2])
async def test_what_is_stored_is_found_at_its_node(number: int) -> None:
    async with world(3) as first, world(nodes=first.nodes) as second:
        first.nodes[number].stored.add("resp_1")
        for w in (first, second, first):
            answer = await w.http.get("/v1/responses/resp_1")
            assert answer.headers["x-quire-node"] == f"node-{number}"
            answer = await w.http.post(
                "/v1/responses", json={"previous_response_id": "resp_1", "input": "x"}
            )
            assert answer.json()["node"] == f"node-{number}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/batches"])
def test_a_body_nested_without_end_goes_to_a_node_which_refuses_it(path: str) -> None:
    """The router reads a few fields of a body; one that it cannot read is not its failure."""
    deep = b'{"id": 1, "model": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    asked = Request("POST", path, (), deep, "r")
    assert place_of(asked) is not None
    assert asked.model is None
    assert asked.fields == {}


async def test_a_question_carries_the_callers_key() -> None:
    async with world(1) as w:
        await w.http.get("/v1/files/f", headers={"authorization": "Bearer mine"})
        assert w.nodes[0].asked[0].headers["authorization"] == "Bearer mine"


async def test_what_may_be_at_a_lost_node_is_not_called_unknown() -> None:
    async with world(2) as w:
        await w.nodes[1].peer.die()
        answer = await w.http.get("/v1/responses/resp_1")
        assert answer.status_code == 503
        assert "node-1" in answer.json()["error"]["message"]
        w.nodes[0].stored.add("resp_1")
        assert (await w.http.get("/v1/responses/resp_1")).status_code == 200


async def test_uploads_reach_every_node() -> None:
    async with world(3) as w:
        await w.http.post("/v1/programs/uploads", json={"source": "x"})
        assert [len(node.asked) for node in w.nodes] == [1, 1, 1]
