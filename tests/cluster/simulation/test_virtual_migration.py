"""A conversation whose pages lie on the host of a busy node is sent from there to an idle one."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec
from virtual_clusters import ONE_STEP

from quire.cluster.requests.request import COMPLETIONS, Request
from quire.cluster.simulation.virtual_engine import VirtualEngine
from quire.cluster.simulation.virtual_fleet import VirtualFleet
from quire.cluster.strategies.migrating import Migrating
from quire.core.ids import EngineId
from quire.programs.builtin import CompletionRequest, complete
from quire.simulation.engines import EngineSpec
from quire.simulation.exchange import LinkCost
from quire.simulation.step_cost import StepCost

PAGE, BATCH = 16, 64
PROMPT = 3 * BATCH
"""A prompt of three messages: the second is sent before the first has ended."""

SPEC = EngineSpec(
    kv_tokens=16 * BATCH,
    host_tokens=64 * BATCH,
    max_batch_tokens=BATCH,
    page_size=PAGE,
    cost=StepCost(message_s=0, step_s=1.0, row_s=0, prompt_token_s=0.25),
    num_layers=4,
    token_bytes=40,
)


def prompt_of(session: int) -> list[int]:
    return [session, *range(1000, 999 + PROMPT)]


def is_on_host(engine: VirtualEngine, prompt: list[int]) -> list[bool]:
    """For each full page of ``prompt`` that ``engine`` has, whether it is on its host."""
    memory = engine.virtual.controller._schedulers[EngineId("light#0")].engine.memory
    contents = memory.index.contents()
    own = [one for one in contents if one.node and one.node.path()[0].tokens[0] == prompt[0]]
    return [one.block is None and one.host_block is not None for one in own]


async def call(engine: VirtualEngine, session: int, stack: ExitStack) -> None:
    """Answer a session's prompt; the session goes on."""
    api = engine.virtual.api()
    stack.callback(api.close)
    prompt = tuple(prompt_of(session))
    asked = CompletionRequest(model=engine.virtual.model_id, prompt=prompt, max_tokens=4)
    assert sum([len(one.token_ids) async for one in complete(api, asked)]) == 4


def test_what_the_host_has_of_a_conversation_is_sent_to_the_idle_node() -> None:
    world = VirtualFleet(2, SPEC, ONE_STEP, LinkCost(bytes_per_s=1e6), 0.0, check=True)
    holder, idle = world.engines
    strategy = Migrating(max_extra=2)

    def request(tokens: list[int]) -> Request:
        body = msgspec.json.encode({"model": "light", "prompt": tokens, "max_tokens": 2})
        return Request("POST", COMPLETIONS, [], body, "r")

    async def work() -> None:
        with ExitStack() as stack:
            first = await strategy(request(prompt_of(0)), [holder])
            while await first.read():
                pass
            for session in range(9):  # more than the device holds
                await call(holder, session, stack)
            assert is_on_host(holder, prompt_of(0)) == [True] * (PROMPT // PAGE)
            world.look()
            for _ in range(3):
                holder.node.began()
            answer = await strategy(request([*prompt_of(0), *range(40)]), [holder, idle])
            assert answer.engine == idle.name
            while await answer.read():
                pass
            answer.close()
            assert world.network.num_bytes == PROMPT * SPEC.token_bytes

    world.loop.run(work())
