"""Programs whose source a client has sent, and which run outside the sandbox (``--allow-upload``),
leave a node that is lost or drained."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest
from linked_nodes import LinkedWorld, linked
from real_nodes import RealNode, real_nodes
from router_world import ADMIN_HEADERS, until

from quire.cluster.requests.places import program_lookups

SOURCE = """
from quire.programs.sdk import Context, inferlet, temperature

@inferlet("interview", restartable=True)
async def interview(api, *told):
    context = Context(api).fill("an interview: ")
    answers = list(told)
    for _ in range(3):
        context.fill(await api.receive())
        answers.append(await context.generate_until(max_tokens=5, sampler=temperature(1.0, seed=5)))
        await api.send(answers[-1])
    return answers
"""


REFUSAL = "start every node with --allow-upload"


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2, num_trusting=2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def unlike() -> Iterator[list[RealNode]]:
    """Of which only real-0 runs source of its clients in its own process."""
    with real_nodes(2, num_trusting=1) as nodes:
        yield nodes


async def launched(c: LinkedWorld) -> str:
    """The id of a new program of real-0."""
    answer = await c.w.http.post(
        "/v1/programs",
        json={"source": SOURCE, "args": ["\u00e9"]},
        headers={"x-quire-node": "real-0"},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def told(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, object]]:
    async for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def left(c: LinkedWorld, program: str, how: str | None) -> None:
    """Have real-0 lost or drained, and the program go on at real-1."""
    if how == "lost":
        await c.lose("real-0")
        assert await c.w.router.rescue.find(program_lookups(program), []) is not None
    if how == "drained":
        answer = await c.w.http.post("/router/nodes/real-0/drain", headers=ADMIN_HEADERS)
        assert answer.json()["num_programs_moved"] == 1, answer.text
    at = (await c.w.http.get(f"/v1/programs/{program}")).headers["x-quire-node"]
    assert at == ("real-0" if how is None else "real-1")


async def interviewed(c: LinkedWorld, how: str | None) -> list[str]:
    """The result of a program that leaves real-0 behind its first answer."""
    program = await launched(c)
    place = f"/v1/programs/{program}"
    async with c.w.http.stream("GET", f"{place}/events") as answer:
        events = told(answer.aiter_lines())
        for turn in range(3):
            body = {"signal": "message", "message": f"question {turn}"}
            await c.w.http.post(f"{place}/signal", json=body)
            assert (await anext(events))["sequence"] == turn + 1
            if turn == 0:
                await left(c, program, how)
        assert (await anext(events))["type"] == "ended"
    result: list[str] = (await c.w.http.get(place)).json()["result"]
    return result


async def test_it_goes_on_where_clients_are_trusted_too(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        expected = await interviewed(c, None)
        assert expected[0] == "\u00e9"
        assert await interviewed(c, "lost") == expected
        await c.find_again("real-0")
        assert await interviewed(c, "drained") == expected


async def test_one_that_is_lost_where_no_client_is_trusted_says_so(unlike: list[RealNode]) -> None:
    async with linked(unlike) as c:
        program = await launched(c)
        await c.lose("real-0")
        await until(lambda: c.w.router.rescue.num_lost == 1)
        answer = await c.w.http.get(f"/v1/programs/{program}")
        assert answer.status_code == 404
        assert REFUSAL in answer.json()["error"]["message"]


async def test_one_stays_where_no_other_node_trusts_clients(unlike: list[RealNode]) -> None:
    async with linked(unlike) as c:
        program = await launched(c)
        answer = await c.w.http.post("/router/nodes/real-0/drain", headers=ADMIN_HEADERS)
        assert REFUSAL in answer.json()["programs_that_stay"][program]
        await c.w.http.delete(f"/v1/programs/{program}")
