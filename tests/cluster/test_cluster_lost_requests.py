"""What a program asks of other hosts when its node is lost: what was answered is not asked again,
and nothing that changes something there is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from http_peer import Asked, HttpPeer, Said, said
from linked_nodes import linked
from real_nodes import RealNode, real_nodes

from quire.cluster.requests.places import program_lookups
from quire.core.errors import RequestInterrupted
from quire.programs.library import LIBRARY
from quire.programs.sdk import inferlet


@inferlet("buys", restartable=True, hosts=["127.0.0.1"])
async def buys(api, url):  # type: ignore[no-untyped-def]
    """Buys twice; the host answers the second order late."""
    found = [(await api.http_get(f"{url}/price")).status]
    found.append((await api.http_post(f"{url}/order", "first")).status)
    try:
        found.append((await api.http_post(f"{url}/order", "second")).status)
    except RequestInterrupted:
        found.append((await api.http_get(f"{url}/orders")).json())
    return found


class Shop:
    """A host that does not answer the order ``second``, unless it is made again."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.has_second = asyncio.Event()

    async def __call__(self, asked: Asked) -> Said:
        body = asked.body.decode()
        self.asked.append((asked.path, body))
        if asked.path == "/orders":
            return said([body for path, body in self.asked if path == "/order"])
        if body == "second" and not self.has_second.is_set():
            self.has_second.set()
            await asyncio.Event().wait()
        return said("done")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2) as nodes:
        yield nodes


async def test_an_order_that_had_no_answer_is_not_made_twice(
    nodes: list[RealNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIBRARY._modules, "buys", __name__)
    shop = Shop()
    async with HttpPeer(shop) as host, linked(nodes) as c:
        answer = await c.w.http.post("/v1/programs", json={"program": "buys", "args": [host.url]})
        assert answer.status_code == 201, answer.text
        program, at = answer.json()["id"], answer.headers["x-quire-node"]
        await shop.has_second.wait()
        await c.lose(at)
        found = await c.w.router.rescue.find(program_lookups(program), [])
        assert found is not None
        assert found.name != at
        async with c.w.http.stream("GET", f"/v1/programs/{program}/events") as events:
            async for _ in events.aiter_lines():
                pass
        ended = (await c.w.http.get(f"/v1/programs/{program}")).json()
    assert ended["result"] == [200, 200, ["first", "second"]], ended
    assert shop.asked == [
        ("/price", ""), ("/order", "first"), ("/order", "second"), ("/orders", ""),
    ]  # fmt: skip
