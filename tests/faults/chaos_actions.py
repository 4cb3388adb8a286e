"""What the chaos run does to a node: each action brings a fault, and leaves when it is over.

An action is a function of a node, an HTTP client and random numbers. It says what must hold while
it lasts; what must hold afterwards, the levels say. No action measures time: what it waits for has
a bound that a busy machine does not reach. Add one by writing it and naming it in ``ACTIONS``.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from chaos_node import ENGINE, SANDBOX, SETTLED_S, ChaosNode, send_signal, until
from hostile_guests import COSTLY_GRAMMARS, FORKS, HOSTILE, KEEPS, PATIENT

MAX_ENGINE_LOSSES = 4
LOSS_WINDOW_S = 61.0
"""A node gives up an engine that it loses five times within a minute, and rightly so."""

_PAUSE_S = 1.0
"""For which a stopped process stays stopped."""

_LASTING_S = 3.0
"""After that a program that does not end by itself is told to."""


@dataclass(slots=True)
class Chaos:
    """What the actions share. ``engine_losses``: when the node had noted each, in the loop's
    time."""

    node: ChaosNode
    http: httpx.AsyncClient
    random: random.Random
    engine_losses: list[float]

    async def chat(self, max_tokens: int = 32, words: int = 8) -> int:
        """One call, whose answer is one of ours whatever happens meanwhile; its status."""
        prompt = " ".join(f"word{self.random.randrange(1000)}" for _ in range(words))
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        return checked(await self.http.post("/v1/completions", json=body))

    async def launch(self, source: str, *args: str, wait: bool = False) -> dict[str, Any]:
        """A program that is taken: a sandbox that was lost too often takes none for a while."""
        found: list[dict[str, Any]] = []

        async def is_taken() -> bool:
            body = {"source": source, "args": list(args), "wait": wait}
            answer = await self.http.post("/v1/programs", json=body)
            checked(answer)
            if answer.status_code in (429, 503):
                return False
            found.append(answer.json())
            return True

        await until(is_taken, SETTLED_S, "no program is taken")
        return found[0]

    async def num_restarts(self) -> int:
        """Of the engine, as /health tells it."""
        (engine,) = (await self.http.get("/health")).json()["engines"].values()
        return int(engine["restarts"])

    async def lose_engine(self) -> None:
        """Kill it within the next second, but not so often that the node gives it up; it is there
        again."""
        loop = asyncio.get_running_loop()
        if len(self.engine_losses) >= MAX_ENGINE_LOSSES:
            until_s = self.engine_losses[-MAX_ENGINE_LOSSES] + LOSS_WINDOW_S
            await asyncio.sleep(max(0.0, until_s - loop.time()))
        num_before = await self.num_restarts()
        await asyncio.sleep(self.random.random())
        assert send_signal(self.node.child(ENGINE), signal.SIGKILL)

        async def is_noticed() -> bool:
            return await self.num_restarts() > num_before

        await until(is_noticed, SETTLED_S, "the loss of the engine is not noticed")
        # not when it was killed: the node counts from when it has noticed, on a busy machine
        # seconds later, and a loss that it noticed at once could be the fifth within its minute
        self.engine_losses.append(loop.time())
        await self.node.ready()

    async def end(self, programs: list[str]) -> list[str]:
        """Tell those that run to end; the states in which all have ended."""
        for program in programs:
            checked(await self.http.delete(f"/v1/programs/{program}"))
        return [record["state"] for record in await self.ended(programs)]

    async def ended(self, programs: list[str]) -> list[dict[str, Any]]:
        """The records of programs, once all have ended."""
        records: list[dict[str, Any]] = []

        async def have_ended() -> bool:
            records[:] = [(await self.http.get(f"/v1/programs/{one}")).json() for one in programs]
            return not {"starting", "running"} & {record["state"] for record in records}

        await until(have_ended, SETTLED_S, lambda: f"programs do not end: {records}")
        return records


Action = Callable[[Chaos], Awaitable[None]]


def checked(answer: httpx.Response) -> int:
    """Errors are ours: in their shape, with a code, none that nobody expected."""
    if answer.status_code >= 400:
        error = answer.json()["error"]
        code = error["code"] if isinstance(error, dict) else answer.json()
        assert code != "internal_error", answer.text
    return answer.status_code


async def kill_engine(chaos: Chaos) -> None:
    """While it decodes: calls are answered, and it comes back."""
    calls = [asyncio.create_task(chaos.chat(200)) for _ in range(6)]
    await chaos.lose_engine()
    await asyncio.gather(*calls)
    assert await chaos.chat() == 200


async def kill_engine_of_forks(chaos: Chaos) -> None:
    """Programs that fork and may begin again say what they would have said."""
    names = [f"n{chaos.random.randrange(1000)}" for _ in range(3)]
    first = [await chaos.launch(FORKS, name, wait=True) for name in names]
    assert all(record["state"] == "finished" for record in first), first
    undisturbed = [record["result"] for record in first]
    assert all(len(said) == 24 for said in undisturbed), undisturbed
    programs = [(await chaos.launch(FORKS, name))["id"] for name in names]
    await chaos.lose_engine()
    records = await chaos.ended(programs)
    assert [record["result"] for record in records] == undisturbed, records


async def stop_engine(chaos: Chaos) -> None:
    """For a moment: nobody is told anything, everybody gets an answer."""
    calls = [asyncio.create_task(chaos.chat(64)) for _ in range(4)]
    engine = chaos.node.child(ENGINE)
    assert send_signal(engine, signal.SIGSTOP)
    try:
        assert (await chaos.http.get("/health")).json()["engines"]
        await asyncio.sleep(_PAUSE_S)
    finally:
        send_signal(engine, signal.SIGCONT)
    assert set(await asyncio.gather(*calls)) == {200}


async def kill_sandbox(chaos: Chaos) -> None:
    """Its guests end and say why, and another process takes their place."""
    guests = [(await chaos.launch(PATIENT))["id"] for _ in range(chaos.random.randint(1, 4))]
    killed = send_signal(chaos.node.child(SANDBOX), signal.SIGKILL)
    states = await chaos.end(guests)
    assert not killed or set(states) <= {"terminated", "cancelled"}, states
    again = (await chaos.launch(PATIENT))["id"]
    assert await chaos.end([again]) == ["cancelled"]


async def cut_clients(chaos: Chaos) -> None:
    """Connections that say nothing, half of something, or leave in the middle of an answer."""
    node = chaos.node
    silent = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(200)]
    body = json.dumps({"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True})
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    for _ in range(8):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        sent = (head + body).encode()
        cut = chaos.random.randrange(1, len(sent) + 1)
        writer.write(sent[:cut])
        await writer.drain()
        if cut == len(sent):
            await reader.read(1)
        writer.close()
        silent.append((reader, writer))
    assert (await chaos.http.get("/health")).status_code == 200
    assert await chaos.chat() == 200
    for _, writer in silent:
        writer.transport.abort()


async def fill(chaos: Chaos) -> None:
    """The store, and what is kept of prompts; what was there before is there afterwards."""
    size = str(chaos.random.randrange(1, 2 << 20))
    value = str(chaos.random.random())
    assert (await chaos.launch(KEEPS, "write", value, wait=True))["result"] == value
    assert (await chaos.launch(KEEPS, "fill", size, wait=True))["result"] == 12
    await asyncio.gather(*(chaos.chat(4, words=100) for _ in range(12)))
    assert (await chaos.launch(KEEPS, "clear", wait=True))["result"] == 12
    assert (await chaos.launch(KEEPS, "read", wait=True))["result"] == value


async def oversubscribe(chaos: Chaos) -> None:
    """More calls than there is memory for; some leave before they are answered. How fast the
    others are is not looked at."""
    calls = [asyncio.create_task(chaos.chat(48, words=24)) for _ in range(24)]
    await asyncio.sleep(chaos.random.random())
    for call in chaos.random.sample(calls, 8):
        call.cancel()
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert outcome in (200, 429, 503) or isinstance(outcome, asyncio.CancelledError), outcome


async def hostile_guests(chaos: Chaos) -> None:
    """Each ends, by itself or when it is told to; lists show them all."""
    names = chaos.random.sample(sorted(HOSTILE), 5)
    guests = [(await chaos.launch(HOSTILE[name]))["id"] for name in names]
    await asyncio.sleep(_LASTING_S)
    await chaos.end(guests)
    listed = await chaos.http.get("/v1/programs")
    assert listed.status_code == 200, listed.text
    for guest in guests:
        assert (await chaos.http.get(f"/v1/programs/{guest}/logs")).status_code == 200


async def costly_grammars(chaos: Chaos) -> None:
    """They are refused, and whoever decodes beside them is answered."""
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    hostile = [
        asyncio.create_task(chaos.http.post("/v1/chat/completions", json=fields | one))
        for one in COSTLY_GRAMMARS.values()
        for _ in range(2)
    ]
    assert {await chaos.chat(16) for _ in range(4)} == {200}
    for answer in await asyncio.gather(*hostile):
        assert checked(answer) in (400, 429), answer.text


async def hostile_requests(chaos: Chaos) -> None:
    """Bytes that are no request, and requests that are refused."""
    junk = [
        chaos.random.randbytes(2000),
        b"GET /health HTTP/1.1\r\nhost: evil.example@localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ]
    for sent in junk:
        reader, writer = await asyncio.open_connection("127.0.0.1", chaos.node.port)
        writer.write(sent)
        writer.write_eof()
        said = await _all_of(reader)
        assert not said.startswith(b"HTTP/1.1 5"), said[:300]
        assert b" 200 OK" not in said
        writer.close()
    deep = '{"prompt":' + "[" * 5000 + "]" * 5000 + "}"
    headers = {"content-type": "application/json"}
    answer = await chaos.http.post("/v1/completions", content=deep, headers=headers)
    assert checked(answer) == 400


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:  # it was closed with something of ours unread
        return b""


ACTIONS: tuple[Action, ...] = (
    kill_engine,
    kill_engine_of_forks,
    stop_engine,
    kill_sandbox,
    cut_clients,
    fill,
    oversubscribe,
    hostile_guests,
    costly_grammars,
    hostile_requests,
)
