"""Rounds of faults over real processes: where and how is drawn from a seed.

In a round, one request is divided between two nodes and stops at one of ten points, at which the
sender, the receiver or the router is killed, stopped or cut off, or the client leaves; others run
beside it. Every answer has to be that of an undisturbed node, within the time of a lease, and
nothing of it is left. Then the memory that was used is used again, while what was held up between
the engines comes late, and those answers are looked at, too. Run many:

    PYTHONPATH=tests/cluster python tests/cluster/process_faults.py [NUM_ROUNDS] [FIRST_SEED]
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import httpx
import msgspec
from cluster_processes import (
    MODEL,
    PATIENCE_S,
    ROUND_HEADER,
    ClusterProcesses,
    QuireProcess,
    cluster_processes,
    until,
)

KINDS = ("kill", "stop", "cut")
VICTIMS = ("sender", "receiver", "router")
POINTS = (
    "before_prep_recv",
    "after_prep_recv",
    "sending",  # the sender has just reached the receiver
    "mid_layer",
    "before_fence",  # the last bytes are still to come
    "after_fence",  # the router has not heard of it yet
    "after_remote_send",
    "after_start_generate",
    "mid_decode",
    "late_decode",
)
IN_TRANSFER = ("sending", "mid_layer", "before_fence")
IN_DECODE = ("mid_decode", "late_decode")
LEASE_S = 60.0
NUM_TOKENS = 200
NUM_AGAIN = 24
"""Tokens of an answer that is asked for again: what was cached of its prompt shows in the first
ones."""

SETTLES_EVERY = 25
"""Rounds. Leases that nobody could give up expire first, so it takes a minute."""

STOPPED_S = 4.0
"""Longer than it takes a router to give a silent node up."""

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
_TEXT = "The harbour wakes before the town does. Nets are mended, and a bell counts the boats. "


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; ``begins``: what makes its prompt another one than all before."""

    path: str
    begins: str
    streams: bool = True
    num_tokens: int = NUM_TOKENS

    @property
    def body(self) -> dict[str, Any]:
        text, count = f"{self.begins} {_TEXT}", self.num_tokens
        body: dict[str, Any] = {"model": MODEL, "max_tokens": count, "stream": self.streams}
        if self.path == "/v1/messages":
            return body | {"messages": [{"role": "user", "content": text}], "temperature": 0}
        if self.path == "/v1/responses":
            del body["max_tokens"]
            body |= {"input": text, "max_output_tokens": count}
            return body | {"temperature": 0, "store": False}  # a stored one keeps its pages
        body |= {"temperature": 0.8, "seed": 7}
        if self.path == "/v1/completions":
            return body | {"prompt": text, "ignore_eos": True}
        return body | {"messages": [{"role": "user", "content": text}]}


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` happens to ``victim`` at ``point``."""

    kind: str
    victim: str
    point: str


def drawn(chance: Random) -> Fault:
    if chance.random() < 0.1:
        return Fault("leave", "client", chance.choice(IN_TRANSFER))
    return Fault(*map(chance.choice, (KINDS, VICTIMS, POINTS)))


def divided_at(point: str, number: int, chance: Random) -> Asked:
    """A request that comes to ``point``."""
    if point in IN_DECODE:
        return Asked("/v1/completions", f"Round {number}.")
    path = chance.choice(("/v1/completions", "/v1/chat/completions"))
    return Asked(path, f"Round {number}.", streams=chance.random() < 0.8)


async def _done(heal: Callable[[], Awaitable[None]]) -> None:
    await heal()


class NotMet(Exception):
    """A request has been answered without coming to its point: on a busy machine, the router may
    take a node for dead that is only slow."""


class Client:
    """Asks ``url`` until an answer is whole. ``got``: pieces of the present answer."""

    def __init__(self, url: str, asked: Asked, headers: dict[str, str] | None = None) -> None:
        self._url = url
        self.asked = asked
        self._headers = headers or {}
        self.got: list[str] = []
        self.broken: list[str] = []
        """What was delivered of answers that broke off."""
        self.longest_s = 0.0
        self.has_tokens = asyncio.Condition()

    async def answer(self, is_back: Callable[[], Awaitable[None]] | None = None) -> str:
        """``is_back`` waits for who was asked, if that one may break off its answers: then it is
        asked again. No try takes longer than a lease.

        Raises:
            httpx.TransportError: the answer is not whole.
            AssertionError: nor is this one, or it is an error.
        """
        for _ in range(_MAX_TRIES):
            try:
                return await self._bounded()
            except httpx.TransportError:
                self.broken.append("".join(self.got))
                if is_back is None:
                    raise
                await asyncio.sleep(0.3)
                await is_back()
        raise AssertionError(f"{self.asked}: broken off {_MAX_TRIES} times")

    async def _bounded(self) -> str:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(LEASE_S):
                return await self._once()
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    async def received(self, num_chars: int) -> None:
        async with self.has_tokens:
            await self.has_tokens.wait_for(lambda: len("".join(self.got)) >= num_chars)

    async def _once(self) -> str:
        self.got = []
        body, headers = self.asked.body, self._headers
        async with httpx.AsyncClient(base_url=self._url, timeout=PATIENCE_S, verify=False) as http:
            if not self.asked.streams:
                answer = await http.post(self.asked.path, json=body, headers=headers)
                check_met(answer.text)
                assert answer.status_code == 200, answer.text
                return _text_of(answer.json())
            async with http.stream("POST", self.asked.path, json=body, headers=headers) as said:
                if said.status_code != 200:
                    check_met((await said.aread()).decode())
                assert said.status_code == 200, (await said.aread()).decode()
                async for line in said.aiter_lines():
                    await self._hear(line)
        assert self.got, "no events"
        assert self.got[-1] == "", f"no end: {self.got}"
        return "".join(self.got)

    async def _hear(self, line: str) -> None:
        if not line.startswith("data: "):
            return
        event = {} if line.endswith("[DONE]") else msgspec.json.decode(line[6:], type=dict)
        if "error" in event:
            check_met(line)
            raise AssertionError(event)
        text = _text_of(event) if event else ""
        ends = not event or event.get("type") in _LAST
        if text or ends:
            async with self.has_tokens:
                self.got.append(text)
                self.has_tokens.notify_all()


def check_met(text: str) -> None:
    """Raise ``NotMet`` if the router has refused a request, or given its answer up, because no node
    at all has answered it in time: no fault of a round does that, a busy machine may."""
    _, _, nodes = text.partition(_NO_ENGINE)
    num_dead = nodes.count(" dead (no answer to /health within")
    if num_dead and num_dead == nodes.count("node-"):
        raise NotMet(text)


_NO_ENGINE = "no engine takes this request now: "
_MAX_TRIES = 60
_MAX_ATTEMPTS, _OTHER_PROMPTS = 10, 1_000_000
_LAST = ("message_stop", "response.completed", "response.incomplete")


def _text_of(event: dict[str, Any]) -> str:
    """Of an answer or a part of it, in any of the APIs."""
    if str(event.get("type")).startswith("response."):
        return str(event.get("delta", ""))
    if "content" in event:
        return "".join(one["text"] for one in event["content"])
    if "delta" in event:
        return str(event["delta"].get("text") or "")
    text = ""
    for choice in event.get("choices", ()):
        said = choice.get("delta") or choice.get("message") or choice
        text += str(said.get("reasoning_content") or "") + str(
            said.get("content") or said.get("text") or ""
        )
    return text


class Rounds:
    """Over ``cluster``. ``num_sent_bytes``: of an undisturbed transfer."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self._known: dict[Asked, str] = {}
        self._num_sent_bytes = 0
        self.outcomes: Counter[str] = Counter()
        self.longest_s = 0.0
        self.last_fault = ""

    async def measure(self) -> None:
        """An undisturbed round."""
        before = self._cluster.data.num_bytes_there
        asked = Asked("/v1/completions", "Measured first.")
        said = await self._divided(asked).answer()
        assert said == await self.expected(asked)
        self._num_sent_bytes = self._cluster.data.num_bytes_there - before
        assert self._num_sent_bytes > 300, "nothing went from engine to engine"

    async def expected(self, asked: Asked) -> str:
        """What an undisturbed node says: the last one, which is asked directly."""
        if asked not in self._known:
            *_, node = self._cluster.nodes.values()
            self._known[asked] = await Client(node.url, asked).answer()
        return self._known[asked]

    async def met(self, seed: int, fault: Fault | None = None) -> None:
        """The round of ``seed``; again, with other prompts, if its fault had no occasion."""
        for attempt in range(_MAX_ATTEMPTS):
            try:
                await self.round_of(seed + attempt * _OTHER_PROMPTS, fault or drawn(Random(seed)))
            except NotMet:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
                await self.all_take_work()
            else:
                print(f"seed {seed}: {self.last_fault}, every answer was right", flush=True)
                return

    async def round_of(self, seed: int, fault: Fault | None = None) -> None:
        chance = Random(seed)
        fault = fault or drawn(chance)
        asked = divided_at(fault.point, seed, chance)
        beside = [Asked(chance.choice(PATHS), f"Beside {seed}, {n}.") for n in range(2)]
        every = (asked, *beside)
        is_back = self._cluster.router.ready if fault.victim == "router" else None
        clients = [self._divided(asked)] + [Client(self._cluster.url, one) for one in beside]
        answers = [asyncio.create_task(one.answer(is_back)) for one in clients]
        try:
            heal = await self._break(fault, clients[0], answers[0])
            said = await asyncio.gather(*answers, return_exceptions=True)
        finally:
            for task in answers:
                task.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
        healed = None if fault.kind == "leave" else asyncio.create_task(_done(heal))
        try:
            await self._compare(fault, clients, said)
        finally:
            if healed is not None:  # while the answers were compared
                await healed
        again = asyncio.create_task(self._used_again(every, seed))
        if healed is None:  # what was held up comes into memory that others use by now
            await heal()
        await again
        self.outcomes[f"{fault.kind} {fault.victim}"] += 1
        self.last_fault = f"{fault.kind} {fault.victim} {fault.point}"

    async def _compare(
        self, fault: Fault, clients: Sequence[Client], said: Sequence[str | BaseException]
    ) -> None:
        """Every answer is that of an undisturbed node, but for one whose client has left."""
        asked = [client.asked for client in clients]
        expected = await asyncio.gather(*map(self.expected, asked))
        self.longest_s = max([self.longest_s, *(client.longest_s for client in clients)])
        for client, text, right in zip(clients, said, expected, strict=True):
            if client is clients[0] and fault.kind == "leave":
                continue
            if isinstance(text, NotMet):
                raise text
            if isinstance(text, BaseException):
                raise AssertionError(f"{fault}: {client.asked} has failed") from text
            assert text == right, (fault, client.asked, text, right)
            assert all(right.startswith(part) for part in client.broken), client.broken

    def _divided(self, asked: Asked) -> Client:
        return Client(self._cluster.url, asked, {ROUND_HEADER: "1"})

    async def _used_again(self, asked: Sequence[Asked], seed: int) -> None:
        """Fill the nodes' memory with other prompts, then ask for the same ones: what is cached of
        them must be what was computed."""
        begins = [f"Again {seed % 5}, {number}." for number in range(3)]
        others = [Asked("/v1/completions", one, num_tokens=NUM_AGAIN) for one in begins]
        every = [*(replace(one, num_tokens=NUM_AGAIN) for one in asked), *others]
        expected = await asyncio.gather(*map(self.expected, asked), *map(self.expected, others))
        nodes = self._cluster.nodes.values()
        answers = [[Client(node.url, one).answer() for one in every] for node in nodes]
        texts = await asyncio.gather(*(asyncio.gather(*of_node) for of_node in answers))
        for node, said in zip(nodes, texts, strict=True):
            for one, text, right in zip(every, said, expected, strict=True):
                assert text, (node.name, one)
                assert right.startswith(text), (node.name, one, text, right)

    # -- faults ------------------------------------------------------------------------------------

    async def _break(
        self, fault: Fault, client: Client, answer: asyncio.Task[str]
    ) -> Callable[[], Awaitable[None]]:
        """Let ``fault`` happen at its point; returns what heals it."""
        cluster, points = self._cluster, self._cluster.points
        arrived = asyncio.create_task(self._arrive(fault.point, client))
        await asyncio.wait({arrived, answer}, return_when=asyncio.FIRST_COMPLETED, timeout=LEASE_S)
        if fault.point in IN_DECODE and answer.done() and answer.exception() is None:
            arrived.cancel()  # on a machine that is busy elsewhere, all of it may come at once
            await asyncio.wait({arrived})
        elif not arrived.done():
            arrived.cancel()
            points.go_on()
            cluster.data.restore()
            assert await answer == await self.expected(client.asked)
            raise NotMet(f"{fault} has not come to its point, {points.reached} was the last")
        else:
            await arrived
        if fault.kind == "leave":
            return await self._left(answer)
        heal = await self._happen(fault)
        for link in (cluster.data, *cluster.links.values()):
            if link.state == "held":
                link.restore()
        points.go_on()
        return heal

    async def _arrive(self, point: str, client: Client) -> None:
        """Return at ``point``, at which everything waits."""
        cluster, points = self._cluster, self._cluster.points
        if point in IN_DECODE:
            length = len(await self.expected(client.asked))
            await client.received(1 if point == "mid_decode" else length // 2)
            return
        if point not in (*IN_TRANSFER, "after_fence"):
            points.stop_at(point)
            await points.has_arrived.wait()
            return
        points.stop_at("after_prep_recv")
        await points.has_arrived.wait()
        begin = cluster.data.num_bytes_there
        num_bytes = {"sending": 1, "mid_layer": self._num_sent_bytes // 2}.get(
            point, self._num_sent_bytes - 1
        )
        if point == "after_fence":
            points.go_on()
            await cluster.data.passed_there(begin + 1)
            cluster.links["node-1"].hold()  # the router hears nothing of the sender's success
        else:
            cluster.data.hold(after_bytes=num_bytes)
            points.go_on()
        await cluster.data.passed_there(begin + num_bytes)

    async def _left(self, answer: asyncio.Task[str]) -> Callable[[], Awaitable[None]]:
        """The client goes, and with it the lease; what heals lets through what is held."""
        answer.cancel()
        await asyncio.wait({answer})
        receiver = self._cluster.nodes["node-0"]

        async def is_free() -> bool:
            return not (await receiver.levels()).leases

        await until(is_free, "the lease stays although its client has gone")

        async def let_through() -> None:
            self._cluster.data.restore()

        return let_through

    async def _happen(self, fault: Fault) -> Callable[[], Awaitable[None]]:
        cluster = self._cluster
        name = {"receiver": "node-0", "sender": "node-1"}.get(fault.victim)
        process = cluster.router if name is None else cluster.nodes[name]
        link = cluster.front if name is None else cluster.links[name]
        if fault.kind == "kill":
            process.kill()
            process.start()
            return process.ready
        if fault.kind == "stop":
            process.signal(signal.SIGSTOP)
            return await self._stopped(process)
        link.cut()
        cluster.data.cut()

        async def mend() -> None:
            link.restore()
            cluster.data.restore()

        if name is None:  # its client comes back when the link does
            asyncio.get_running_loop().call_later(0.5, link.restore)
        return mend

    async def _stopped(self, process: QuireProcess) -> Callable[[], Awaitable[None]]:
        async def go_on() -> None:
            await asyncio.sleep(STOPPED_S)
            process.signal(signal.SIGCONT)

        going_on = asyncio.create_task(go_on())

        async def wait() -> None:
            await going_on
            await process.ready()

        return wait

    async def all_take_work(self) -> None:
        async with httpx.AsyncClient(
            base_url=self._cluster.url, timeout=PATIENCE_S, verify=False
        ) as http:

            async def takes() -> bool:
                with suppress(httpx.TransportError):
                    detail = (await http.get("/ready")).json().get("detail", "")
                    num_nodes = len(self._cluster.nodes)
                    return bool(detail.startswith(f"{num_nodes} of {num_nodes} nodes take work"))
                return False

            await until(takes, "the router does not take all nodes back")


async def rounds(
    num_rounds: int, first: int = 0, *, num_nodes: int = 3, faults: Sequence[Fault] = ()
) -> Rounds:
    """Rounds of the seeds from ``first`` on, with the ``faults`` or drawn ones."""
    async with cluster_processes(num_nodes) as cluster:
        made = Rounds(cluster)
        await made.measure()
        for seed in range(first, first + num_rounds):
            fault = faults[seed - first] if faults else None
            try:
                await made.met(seed, fault)
                await made.all_take_work()
                if (seed - first) % SETTLES_EVERY == SETTLES_EVERY - 1:
                    await cluster.settled()
            except BaseException as exc:
                exc.add_note(f"in the round of seed {seed}")
                for process in (*cluster.nodes.values(), cluster.router):
                    exc.add_note(f"{process.name}:\n{process.log.read_text()[-3000:]}")
                raise
        await cluster.settled()
        return made


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]] or [100]
    done = asyncio.run(rounds(*numbers))
    print(f"{sum(done.outcomes.values())} rounds, every answer was right: {dict(done.outcomes)}")
    print(f"the longest answer took {done.longest_s:.1f} s, a lease {LEASE_S:.0f} s")
