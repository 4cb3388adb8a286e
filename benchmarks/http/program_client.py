"""Plays programs of the simulator's plans against any OpenAI-compatible server, in real time.

Owns the client of a program: its calls follow their plan, their lengths are forced, and what a call
continues is the text of the earlier call, prompt and answer, token by token. Times run from the
scheduled arrival, as in the simulator.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from statistics import fmean
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from quire.simulation.workloads.plan import CallPlan, ProgramPlan

_FIRST_ID = 3
"""Of the vocabulary; those below are special tokens."""
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how it is asked. ``names_programs``: whether requests say in headers of Quire's
    which program and thread they belong to; other servers know no programs."""

    url: str
    model: str
    vocab_size: int
    names_programs: bool


@dataclass(slots=True)
class PlayedPrograms:
    """The programs of one run, each with ``arrived_s`` and ``ended_s`` in seconds from the run's
    beginning; ``ended_s`` is infinity while a program runs, and for good if the run was given
    up."""

    plans: Sequence[ProgramPlan]
    arrived_s: Sequence[float]
    ended_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ended_s = [inf] * len(self.plans)

    def latencies_s(self, now_s: float = inf) -> list[float]:
        """Return each program's seconds per generated token. Of those that run at ``now_s`` it is
        what it is at least."""
        return [
            max(0.0, min(ended_s, now_s) - arrived_s) / plan.num_output_tokens
            for plan, arrived_s, ended_s in zip(
                self.plans, self.arrived_s, self.ended_s, strict=True
            )
        ]

    def responses_s(self) -> list[float]:
        return [end - start for start, end in zip(self.arrived_s, self.ended_s, strict=True)]


async def play_programs(
    target: Target,
    plans: Sequence[ProgramPlan],
    times_s: Sequence[float],
    seed: int,
    give_up_s: float = inf,
) -> PlayedPrograms:
    """Play ``plans``, which arrive at ``times_s``. ``seed``: of their texts, so that runs find
    nothing of one another in a prefix cache. As soon as the mean latency of a token is certainly
    beyond ``give_up_s``, what still runs is cancelled.

    Raises:
        RuntimeError: the server refused a call, or its answer has another length.
    """
    played = PlayedPrograms(plans, times_s)
    began_s = time.perf_counter()

    async def one(number: int) -> None:
        await asyncio.sleep(began_s + times_s[number] - time.perf_counter())
        await _Program(target, plans[number], f"{seed}/{number}").run()
        played.ended_s[number] = time.perf_counter() - began_s

    programs = asyncio.gather(*(one(number) for number in range(len(plans))))
    try:
        while not programs.done():
            await asyncio.wait((programs,), timeout=_LOOK_S)
            if fmean(played.latencies_s(time.perf_counter() - began_s)) > give_up_s:
                break
        else:
            programs.result()  # raises what a program has raised
    finally:
        programs.cancel()
        await asyncio.gather(programs, return_exceptions=True)
    return played


class _Program:
    """One program that runs. Its calls are tasks, each of which waits for those that it follows."""

    def __init__(self, target: Target, plan: ProgramPlan, name: str) -> None:
        self._target, self._plan = target, plan
        self._random = Random(name)
        self._id = f"program-{self._random.getrandbits(64):x}"
        self._common = self._draw(max(call.num_shared for call in plan.calls))
        self._own = [self._draw(call.num_prompt) for call in plan.calls]
        self._texts: list[list[int]] = [[] for _ in plan.calls]

    def _draw(self, number: int) -> list[int]:
        return [self._random.randrange(_FIRST_ID, self._target.vocab_size) for _ in range(number)]

    async def run(self) -> None:
        await self._run_calls()
        if self._target.names_programs:
            await request_json("DELETE", f"{self._target.url}/v1/sessions/{self._id}")

    async def _run_calls(self) -> None:
        async with asyncio.TaskGroup() as group:
            calls: list[asyncio.Task[None]] = []
            for number, call in enumerate(self._plan.calls):
                follows = [calls[other] for other in call.after]
                calls.append(group.create_task(self._call(number, call, follows)))

    async def _call(self, number: int, call: CallPlan, follows: list[asyncio.Task[None]]) -> None:
        if follows:
            await asyncio.wait(follows)
        if call.wait_s:
            await asyncio.sleep(call.wait_s)
        own = self._own[number if call.repeats is None else call.repeats]
        before = self._common[: call.num_shared]
        if call.extends is not None:
            before = self._texts[call.extends]
        prompt = before + own
        self._texts[number] = prompt + await self._ask(prompt, call)

    async def _ask(self, prompt: list[int], call: CallPlan) -> list[int]:
        body = {
            "model": self._target.model,
            "prompt": prompt,
            "max_tokens": call.num_output,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        headers = {}
        if self._target.names_programs:
            headers = {"x-quire-program-id": self._id, "x-quire-thread-id": str(call.thread)}
        url = f"{self._target.url}/v1/completions"
        answer = await request_json("POST", url, body, headers)
        tokens: list[int] = answer["choices"][0]["token_ids"]
        if len(tokens) != call.num_output:
            raise RuntimeError(
                f"{len(tokens)} tokens came of {call.num_output} that were asked for"
            )
        return tokens


async def request_json(
    method: str, url: str, body: object = None, headers: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Send a request on a connection of its own; return its answer.

    Raises:
        RuntimeError: the answer is not 200; the message contains it.
    """
    parts = urlsplit(url)
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {parts.path} HTTP/1.1",
        f"host: {parts.netloc}",
        "connection: close",
        "content-type: application/json",
        f"content-length: {len(sent)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + sent)
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{method} {url}: {head[:40]!r} {answer[:400]!r}")
    found: dict[str, Any] = json.loads(answer)
    return found
