"""A program with real K and V moves with its pages, and says what it says undisturbed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from real_nodes import whole_nodes
from router_world import ADMIN_HEADERS, World, world

from quire.programs.library import LIBRARY
from quire.programs.sdk import Context, inferlet, temperature

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

TEXT = "The harbour wakes before the town does. Nets are mended, and a bell counts the boats. " * 4
NUM_TURNS = 4


@inferlet("harbour", restartable=True)
async def harbour(api):  # type: ignore[no-untyped-def]
    """Goes on with one text on two forks, a part for each message."""
    context = Context(api).fill(TEXT)
    await context.generate_until(max_tokens=20, sampler=temperature(0.8, seed=3), ignore_eos=True)
    texts = [context, context.fork()]
    for turn in range(NUM_TURNS):
        word = await api.receive()
        for number, one in enumerate(texts):
            one.fill(f" {word} {number}.")
            sampler = temperature(0.8, seed=10 * turn + number)
            await one.generate_until(max_tokens=20, sampler=sampler, ignore_eos=True)
        await api.send(texts[turn % 2].text)
    return [one.text for one in texts]


async def run(w: World, *, is_moved: bool) -> tuple[list[Any], dict[str, int]]:
    """What it says and returns, and its figures."""
    answer = await w.http.post("/v1/programs", json={"program": "harbour"})
    assert answer.status_code == 201, answer.text
    program, at, left = answer.json()["id"], answer.headers["x-quire-node"], {}
    said: list[Any] = []
    async with w.http.stream("GET", f"/v1/programs/{program}/events", timeout=300) as events:
        lines = events.aiter_lines()
        for turn in range(NUM_TURNS):
            body = {"signal": "message", "message": f"word {turn}"}
            assert (await w.http.post(f"/v1/programs/{program}/signal", json=body)).is_success
            said.append(json.loads(await next_event(lines))["text"])
            if is_moved and turn == 1:
                path = f"/router/nodes/{at}/drain"
                left = (await w.http.post(path, headers=ADMIN_HEADERS, timeout=300)).json()
                await w.http.delete(path, headers=ADMIN_HEADERS)
        said += json.loads(await next_event(lines))["program"]["result"]
    usage = (await w.http.get(f"/v1/programs/{program}")).json()["usage"]
    return said, {**usage, **left}


async def next_event(lines: Any) -> str:
    async for line in lines:
        if line.startswith("data: {"):
            return str(line[6:])
    raise AssertionError("the stream has ended")


async def test_it_says_the_same_and_computes_little_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARY._modules, "harbour", __name__)
    with whole_nodes(2) as nodes:
        async with world(nodes=nodes) as w:
            moved, used = await run(w, is_moved=True)
            assert used["num_programs_moved"] == 1
            assert used["num_program_tokens_sent"] > 100
            assert used["num_cached_tokens"] > used["num_prefilled_tokens"]
            undisturbed, _ = await run(w, is_moved=False)
    assert moved == undisturbed
