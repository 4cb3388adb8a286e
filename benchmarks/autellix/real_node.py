"""Plays plans of the simulator on a real node: the same calls at the same times, with real tokens.

Owns the client of a program. Response times run from the scheduled arrival, as in the simulator.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quire.cli.configuration import DEFAULT_TENANT
from quire.core.config import NodeConfig
from quire.node import Node
from quire.programs.builtin import CompletionRequest, complete
from quire.simulation.workloads.plan import CallPlan, ProgramPlan


@asynccontextmanager
async def started(config: NodeConfig) -> AsyncIterator[Node]:
    node = Node(config)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@dataclass(frozen=True, slots=True)
class Played:
    """One program that was played. ``late_s``: how long after its scheduled arrival the client
    began with it, in seconds."""

    response_s: float
    late_s: float


async def play_plans(
    node: Node, plans: Sequence[ProgramPlan], times_s: Sequence[float], seed: int
) -> list[Played]:
    """Play all programs of one run. ``seed``: that of their texts, so that runs find nothing of one
    another in the prefix cache."""
    began_s = time.perf_counter()

    async def program(number: int, plan: ProgramPlan, at_s: float) -> Played:
        await asyncio.sleep(began_s + at_s - time.perf_counter())
        late_s = time.perf_counter() - began_s - at_s
        await _play(node, plan, random.Random(f"{seed}/{number}"))
        return Played(time.perf_counter() - began_s - at_s, late_s)

    made = [
        program(number, plan, at_s)
        for number, (plan, at_s) in enumerate(zip(plans, times_s, strict=True))
    ]
    return list(await asyncio.gather(*made))


async def _play(node: Node, plan: ProgramPlan, texts: random.Random) -> None:
    """One program of one thread, in a session of its own."""
    [model] = node.models()
    vocabulary = model.info.vocab_size
    session = node.session(DEFAULT_TENANT, str(texts.getrandbits(64)))
    contexts: list[tuple[int, ...]] = []
    for call in plan.calls:
        before = () if call.extends is None else contexts[call.extends]
        added = tuple(texts.randrange(vocabulary) for _ in range(call.num_prompt))
        if call.wait_s:
            await asyncio.sleep(call.wait_s)
        prompt = before + added
        request = CompletionRequest(prompt=prompt, max_tokens=call.num_output, ignore_eos=True)
        asked = session.call(complete, request)
        answer: list[int] = []
        async for chunk in asked:
            answer += chunk.token_ids
        await asked.wait_closed()
        _check(call, answer)
        contexts.append(prompt + tuple(answer))
    session.end()


def _check(call: CallPlan, answer: Sequence[int]) -> None:
    if len(answer) != call.num_output:
        raise RuntimeError(f"{len(answer)} tokens came of {call.num_output} that were asked for")
