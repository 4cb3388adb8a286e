"""Programs over HTTP: what a call sends, when it is sent, and what ends a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest

from benchmarks.http.program_client import Target, play_programs
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

Answer = Callable[[dict[str, Any]], Awaitable[tuple[int, dict[str, Any]]]]


class FakeServer:
    """Answers every request; ``asked``: method, path, headers and body of each."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._serving: set[asyncio.Task[None]] = set()
        self.asked: list[tuple[str, str, dict[str, str], dict[str, Any]]] = []

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def ended(self) -> None:
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split()
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        sent = await reader.readexactly(int(headers["content-length"]))
        body = json.loads(sent) if sent else {}
        self.asked.append((method, path, headers, body))
        status, answer = await self._answer(body) if method == "POST" else (200, {})
        told = json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(told)}\r\n\r\n".encode() + told)
        writer.close()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for method, _, _, body in self.asked if method == "POST"]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[FakeServer, str]]:
    fake = FakeServer(answer)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    async with server:
        yield fake, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await fake.ended()


async def sevens(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """As many tokens as were asked for."""
    return 200, {"choices": [{"token_ids": [7] * body["max_tokens"]}]}


def target(url: str, *, names_programs: bool = False) -> Target:
    return Target(url, "model", vocab_size=50, names_programs=names_programs)


async def test_a_call_continues_the_text_that_it_extends() -> None:
    plan = ProgramPlan(
        "kind",
        (
            CallPlan(3, 2, num_shared=4),
            CallPlan(5, 1, extends=0, after=(0,)),
            CallPlan(3, 1, num_shared=4, after=(1,), repeats=0),
        ),
    )
    async with serving(sevens) as (fake, url):
        played = await play_programs(target(url), [plan], [0.0], seed=1)
    first, second, third = (body["prompt"] for body in fake.bodies)
    assert [len(first), len(second), len(third)] == [7, 14, 7]
    assert second[:9] == [*first, 7, 7]
    assert third == first
    assert [body["max_tokens"] for body in fake.bodies] == [2, 1, 1]
    assert all(body["ignore_eos"] for body in fake.bodies)
    assert played.latencies_s() == [played.ended_s[0] / 4]


async def test_programs_have_texts_of_their_own_and_the_same_in_each_run_of_a_seed() -> None:
    plan = ProgramPlan("kind", (CallPlan(20, 1),))
    prompts = []
    async with serving(sevens) as (fake, url):
        for seed in (1, 1, 2):
            await play_programs(target(url), [plan, plan], [0.0, 0.0], seed)
            prompts.append(sorted(body["prompt"] for body in fake.bodies[-2:]))
    assert prompts[0] == prompts[1]
    assert prompts[0][0] != prompts[0][1]
    assert prompts[0] != prompts[2]


async def test_only_servers_that_know_programs_are_told_of_them() -> None:
    plan = ProgramPlan("kind", (CallPlan(2, 1), CallPlan(2, 1, after=(0,), thread=3)))
    async with serving(sevens) as (fake, url):
        await play_programs(target(url), [plan], [0.0], seed=1)
        assert not [name for *_, headers, _ in fake.asked for name in headers if "quire" in name]
        fake.asked.clear()
        await play_programs(target(url, names_programs=True), [plan], [0.0], seed=1)
    (_, _, first, _), (_, _, second, _), (method, path, _, _) = fake.asked
    assert first["x-quire-program-id"] == second["x-quire-program-id"]
    assert (first["x-quire-thread-id"], second["x-quire-thread-id"]) == ("0", "3")
    assert (method, path) == ("DELETE", f"/v1/sessions/{first['x-quire-program-id']}")


async def test_calls_side_by_side_are_sent_together_and_later_ones_wait() -> None:
    both_asked = asyncio.Barrier(2)

    async def together(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body["max_tokens"] == 2:
            await both_asked.wait()
        return await sevens(body)

    plan = ProgramPlan("kind", (CallPlan(1, 2), CallPlan(1, 2), CallPlan(1, 1, after=(0, 1))))
    async with serving(together) as (fake, url):
        await play_programs(target(url), [plan], [0.0], seed=1)
    assert [body["max_tokens"] for body in fake.bodies] == [2, 2, 1]


async def test_a_run_whose_mean_is_certainly_beyond_is_given_up() -> None:
    given_up = asyncio.Event()

    async def hang(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body["max_tokens"] == 2:
            await given_up.wait()
        return await sevens(body)

    plans = [ProgramPlan("kind", (CallPlan(1, number),)) for number in (1, 2)]
    async with serving(hang) as (_, url):
        played = await play_programs(target(url), plans, [0.0, 0.0], seed=1, give_up_s=0.01)
        given_up.set()
    assert played.ended_s[0] < inf
    assert played.latencies_s()[1] == inf
    assert played.latencies_s(now_s=3.0)[1] == 1.5


@pytest.mark.parametrize(
    ("status", "tokens", "told"),
    [(503, [7], "503"), (200, [7, 7], "2 tokens came of 1")],
)
async def test_a_refusal_or_another_length_ends_the_run(
    status: int, tokens: list[int], told: str
) -> None:
    async def wrong(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return status, {"choices": [{"token_ids": tokens}]}

    plan = ProgramPlan("kind", (CallPlan(1, 1),))
    async with serving(wrong) as (_, url):
        with pytest.raises(ExceptionGroup) as raised:
            await play_programs(target(url), [plan], [0.0], seed=1)
    assert raised.group_contains(RuntimeError, match=told)
