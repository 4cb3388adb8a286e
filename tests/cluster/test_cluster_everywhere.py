"""Lists that a router makes of those of its nodes."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from http_peer import Asked, Said, said
from router_world import world
from stand_in_node import StandInNode


class Listing(StandInNode):
    """A node with so many files, the newest first, which it tells page by page."""

    def __init__(self, name: str, fleet: dict[str, StandInNode], times: range) -> None:
        super().__init__(name, fleet)
        self.files = [{"id": f"{name}-{at}", "created_at": at} for at in reversed(times)]
        self.pages: list[dict[str, str]] = []
        answer = self.peer._answer

        async def listing(asked: Asked) -> Said:
            return self._listed(asked) if asked.path == "/v1/files" else await answer(asked)

        self.peer._answer = listing

    def _listed(self, asked: Asked) -> Said:
        query = {name: one[0] for name, one in parse_qs(asked.target.partition("?")[2]).items()}
        self.pages.append(query)
        ids = [one["id"] for one in self.files]
        start = ids.index(query["after"]) + 1 if "after" in query else 0
        page = self.files[start : start + int(query["limit"])]
        has_more = start + len(page) < len(self.files)
        return said({"object": "list", "data": page, "last_id": page[-1]["id"] if page else None,
                     "has_more": has_more})  # fmt: skip


async def listed(url: str, http: Any) -> dict[str, Any]:
    answer = await http.get(url)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_list_of_many_pages_is_whole_and_the_newest_come_first() -> None:
    fleet: dict[str, StandInNode] = {}
    nodes = [Listing("a", fleet, range(0, 500, 2)), Listing("b", fleet, range(1, 80, 2))]
    async with nodes[0].peer, nodes[1].peer, world(nodes=nodes) as w:
        told, after = [], ""
        while True:
            page = await listed(f"/v1/files?limit=100{after}", w.http)
            told += [one["created_at"] for one in page["data"]]
            assert (page["first_id"], page["last_id"]) == (
                page["data"][0]["id"], page["data"][-1]["id"],
            )  # fmt: skip
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
    assert told == sorted([*range(0, 500, 2), *range(1, 80, 2)], reverse=True)
    first = nodes[0].pages[:3]
    assert first == [
        {"limit": "100"}, {"limit": "100", "after": "a-300"}, {"limit": "100", "after": "a-100"},
    ]  # fmt: skip
    assert nodes[1].pages[0] == {"limit": "100"}


async def test_a_page_may_be_as_long_as_is_asked_for_and_no_longer() -> None:
    fleet: dict[str, StandInNode] = {}
    node = Listing("a", fleet, range(30))
    async with node.peer, world(nodes=[node]) as w:
        assert len((await listed("/v1/files", w.http))["data"]) == 20
        newest = await listed("/v1/files?limit=2", w.http)
        assert [one["created_at"] for one in newest["data"]] == [29, 28]
        oldest = await listed("/v1/files?limit=2&order=asc", w.http)
        assert [one["created_at"] for one in oldest["data"]] == [0, 1]
        for wrong in ("0", "101", "x", "-1", "1" * 50, "0000010000", "000001" + "0" * 5000):
            refused = await w.http.get(f"/v1/files?limit={wrong}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "limit")


async def test_a_node_that_tells_no_list_is_named() -> None:
    fleet: dict[str, StandInNode] = {}
    node = StandInNode("a", fleet)
    answer = node.peer._answer
    told: list[Any] = [{"data": [None]}, {"data": 5}, []]

    async def listing(asked: Asked) -> Said:
        return said(told.pop()) if asked.path == "/v1/files" else await answer(asked)

    node.peer._answer = listing
    async with node.peer, world(nodes=[node]) as w:
        while told:
            refused = await w.http.get("/v1/files")
            assert refused.status_code == 500
            assert "/v1/files at a answers with what it should not" in refused.text


async def test_a_list_without_end_is_read_once() -> None:
    fleet: dict[str, StandInNode] = {}
    node = StandInNode("a", fleet)
    answer, num_asked = node.peer._answer, 0

    async def listing(asked: Asked) -> Said:
        nonlocal num_asked
        if asked.path != "/v1/files":
            return await answer(asked)
        num_asked += 1
        return said({"data": [], "last_id": "one", "has_more": num_asked < 50})

    node.peer._answer = listing
    async with node.peer, world(nodes=[node]) as w:
        assert (await listed("/v1/files", w.http))["data"] == []
    assert num_asked == 2
