"""Restartable programs: their engine is killed, and they end as if it had not been."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_node import TENANT, StartNode
from sandbox_node import needs_sandbox
from web_stub import WebStub

from quire.core.config import EngineConfig, NodeConfig, SandboxConfig
from quire.core.errors import ProgramCancelled, ProgramFailed, ProgramTerminated
from quire.core.ids import ModelId
from quire.node import Node, ProgramHandle, RestartLimits, read_model_files
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.runtime.native import NativeConfig
from quire.programs.runtime.replay_log import MAX_RESTARTS
from quire.programs.services.network import NetworkPolicy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
on_the_nodes_loop = pytest.mark.asyncio(loop_scope="module")

STEPS = 6
GROUP_S = 900.0
"""For programs that lose some engines, on a machine that is busy with other things."""
BY_HAND = '''
import asyncio
import random

from quire.programs.sdk import Context, inferlet, temperature


@inferlet("by hand", restartable=RESTARTABLE, hosts=["127.0.0.1"])
async def main(api, url):
    """Samples token after token, tells each, and waits to be told to go on."""
    reply = await api.http_get(url)
    queue = api.create_queue()
    tokens = api.tokenize(reply.json()["answer"] * "hello " )
    pages = api.alloc_kvpage(queue, 4)
    position, said = 0, []
    hidden = False
    while len(said) < STEPS:
        embeds = api.alloc_emb(queue, len(tokens))
        api.embed_txt(queue, tokens, range(position, position + len(tokens)), embeds)
        api.forward(queue, pages, embeds, pages, embeds[-1])
        if not hidden:
            visible = [slot != 1 for slot in range(api.available_models()[0].page_size)]
            api.mask_kvpage(queue, pages[0], visible)
            hidden = True
        (token,) = await api.sample(queue, embeds[-1], sampler=temperature(1.0))
        api.dealloc_emb(queue, embeds)
        position += len(tokens)
        tokens = [token]
        said.append(token)
        await api.send(str(token))
        if await api.receive() != "on":
            break
    return said
'''
STREAMED = '''
from quire.programs.sdk import Context, inferlet, temperature


@inferlet("streamed", restartable=True)
async def main(api):
    """Decodes for long; a message says that it is under way."""
    async with Context(api) as context:
        context.fill("hello, a small")
        parts = []
        async for part in context.generate(max_tokens=300, sampler=temperature(1.0, seed=7)):
            if not parts:
                await api.send("under way")
            parts.append(part)
        return "".join(parts)
'''
FORGETFUL = '''
from quire.programs.sdk import inferlet

runs = []


@inferlet("forgetful", restartable=True)
async def main(api):
    """Decides by what no one has told it."""
    runs.append(1)
    queue = api.create_queue()
    page, embeds = api.alloc_kvpage(queue, len(runs)), api.alloc_emb(queue, 1)
    api.embed_txt(queue, [5], [0], embeds)
    api.forward(queue, [], embeds, page[0], embeds)
    await api.get_next_dist(queue, embeds[0])
    await api.send("ready")
    await api.receive()
    await api.get_next_dist(queue, embeds[0])
'''

CLOSED = '''
from quire.programs.sdk import Context, inferlet


@inferlet("closed", restartable=True)
async def main(api):
    """Has closed a context when its engine is lost, and needs what was computed beside it."""
    queue = api.create_queue()
    page, embeds = api.alloc_kvpage(queue, 1), api.alloc_emb(queue, 1)
    api.embed_txt(queue, [5], [0], embeds)
    api.forward(queue, [], embeds, page[0], embeds)
    await api.get_next_dist(queue, embeds[0])
    async with Context(api) as context:
        context.fill("hello, a small")
        said = (await context.generate(max_tokens=20)).text
    await api.send("ready")
    await api.receive()
    await api.get_next_dist(queue, embeds[0])
    return said
'''

PARENT = '''
from quire.programs.sdk import inferlet


async def child(api):
    await api.send("child is here")
    return await api.receive()


PROGRAMS = {"child": inferlet("child")(child)}


@inferlet("parent", restartable=True)
async def main(api):
    """Has a child and a masked page when its engine is lost."""
    launched = await api.launch(PROGRAMS["child"])
    heard = await launched.receive()
    queue = api.create_queue()
    page, embeds = api.alloc_kvpage(queue, 1), api.alloc_emb(queue, 2)
    api.embed_txt(queue, [5, 6], [0, 1], embeds)
    api.forward(queue, [], embeds, page, embeds)
    visible = [slot != 1 for slot in range(api.available_models()[0].page_size)]
    api.mask_kvpage(queue, page[0], visible)
    await api.synchronize(queue)
    await api.send(launched.id)
    await api.receive()
    await api.get_next_dist(queue, embeds[0])
    await launched.send("from the parent")
    return [heard, await launched.join()]
'''

FORKING = '''
import asyncio

from quire.programs.sdk import Context, inferlet


@inferlet("forking", restartable=True)
async def main(api, name):
    """Four forks a round, two of them joined."""
    context = Context(api).fill(f"hello {name}, a small ")
    await context.prefill()
    context.evict(1, 2)
    said = []
    for number in range(3):
        await context.prefill()
        forks = [context.fork().fill(f"{index}:") for index in range(4)]
        said += await asyncio.gather(
            *[fork.generate_until(max_tokens=6, ignore_eos=True) for fork in forks]
        )
        context.join(*forks[:2])
        for fork in forks[2:]:
            fork.drop()
        await api.send(str(number))
        await api.receive()
    await context.next_dist()
    return said
'''


def native(folder: Path, source: str) -> Inferlet:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), "utf-8")
    return load_inferlet(path)


def config(model: Path, **settings: Any) -> NodeConfig:
    engine = EngineConfig(
        source=str(model), name=ModelId("tiny"), dtype="float32", device="cpu",
        kv_cache_bytes=1 << 20, host_cache_bytes=1 << 20, num_threads=1,
    )  # fmt: skip
    return NodeConfig(engines=(engine,), **settings)


OPTIONS: dict[str, Any] = {
    "model_files": read_model_files,
    "restart_limits": RestartLimits(max_losses=100, first_pause_s=0.0, max_pause_s=0.0),
    "native": NativeConfig(network=NetworkPolicy(allow_private=True)),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model_directory: Path) -> AsyncIterator[Node]:
    """A node whose engine is killed by every test that uses it."""
    node = Node(config(model_directory), debug=True, **OPTIONS)
    await node.start()
    yield node
    await node.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def node(shared: Node) -> Node:
    await shared.wait_health(lambda health: health.ready)
    return shared


def kill_engine(node: Node) -> None:
    (supervisor,) = node._parts.fleet._supervisors
    os.kill(supervisor.transport.pid, signal.SIGKILL)  # type: ignore[union-attr]


async def drive(node: Node, handle: ProgramHandle, *, kill_at: int | None) -> list[str]:
    """Answer each message with "on"; kill the engine once, while the program waits."""
    texts: list[str] = []
    async for message in handle.attach():
        texts.append(message.text)
        if len(texts) == kill_at:
            kill_engine(node)
            await node.wait_health(lambda health: not health.ready)
        await handle.send("on")
    return texts


async def check_resumed(node: Node, program: Any, web: WebStub) -> None:
    handle = node.launch(program, [web.url("/json")], tenant=TENANT)
    number = handle.program
    texts = await drive(node, handle, kill_at=3)
    result = await handle.result()
    assert texts == [str(token) for token in result], "each message once, in order"
    assert len(result) == STEPS
    assert web.paths == ["/json"], "what was asked of others is not asked again"
    assert handle.program != number
    assert node.program(handle.id, TENANT) is handle
    assert "the program is resumed" in "".join(line.text for line in handle.logs())


@on_the_nodes_loop
async def test_a_program_is_resumed_with_its_tokens_and_messages(
    node: Node, tmp_path: Path, web: WebStub
) -> None:
    """Its page is masked, so nobody else can compute it anew; its tokens were drawn at random."""
    source = BY_HAND.replace("RESTARTABLE", "True").replace("STEPS", str(STEPS))
    await check_resumed(node, native(tmp_path, source), web)


@needs_sandbox
async def test_a_guest_is_resumed(
    start_node: StartNode, model_directory: Path, sandbox_cache: Path, web: WebStub
) -> None:
    sandbox = SandboxConfig(cache_dir=sandbox_cache, num_warm=0, allow_private_hosts=True)
    settings = config(model_directory, sandbox=sandbox)
    node = await start_node(settings, transport_factory=None, **OPTIONS)
    source = BY_HAND.replace("RESTARTABLE", "True").replace("STEPS", str(STEPS))
    await check_resumed(node, await node.inspect(source.encode()), web)


@on_the_nodes_loop
async def test_one_that_is_not_restartable_is_told(
    node: Node, tmp_path: Path, web: WebStub
) -> None:
    source = BY_HAND.replace("RESTARTABLE", "False").replace("STEPS", str(STEPS))
    handle = node.launch(native(tmp_path, source), [web.url("/json")], tenant=TENANT)
    assert len(await drive(node, handle, kill_at=3)) == 3
    # A command that is on the engine fails with it; one that comes later finds its page gone.
    with pytest.raises(ProgramFailed, match=r"engine tiny#0 is lost|lost,? with its engine"):
        await handle.result()


@on_the_nodes_loop
async def test_a_decode_under_way_goes_on(node: Node, tmp_path: Path) -> None:
    program = native(tmp_path, STREAMED)
    whole = await node.launch(program, tenant=TENANT).result()
    handle = node.launch(program, tenant=TENANT)
    texts = []
    async for message in handle.attach():
        texts.append(message.text)
        kill_engine(node)
    assert texts == ["under way"]
    assert await handle.result() == whole


@on_the_nodes_loop
async def test_what_a_program_has_closed_again_does_not_end_it(node: Node, tmp_path: Path) -> None:
    """It knows the answers, and closes what is done once more before that has ended."""
    handle = node.launch(native(tmp_path, CLOSED), tenant=TENANT)
    assert await asyncio.wait_for(drive(node, handle, kill_at=1), 60) == ["ready"]
    assert "the program is resumed" in "".join(line.text for line in handle.logs())
    undisturbed = node.launch(native(tmp_path, CLOSED), tenant=TENANT)
    await drive(node, undisturbed, kill_at=None)
    assert await handle.result() == await undisturbed.result()


class EngineKills:
    """Kills the engine after each of these numbers of messages, once it serves again."""

    def __init__(self, node: Node, after: list[int]) -> None:
        self._node = node
        self._after = after
        self._num_messages = 0
        self._one_at_a_time = asyncio.Lock()

    async def heard(self) -> None:
        self._num_messages += 1
        if self._num_messages in self._after:
            async with self._one_at_a_time:
                await self._node.wait_health(lambda health: health.ready)
                kill_engine(self._node)
                await self._node.wait_health(lambda health: not health.ready)


@on_the_nodes_loop
@pytest.mark.timeout(0)  # each group has a bound of its own
async def test_programs_that_fork_survive_engine_after_engine(
    node: Node, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """All at once, each in a round of its own, with pages that it has filled on one queue and
    copied on others. Every group of programs loses as many engines as a program may."""
    program = native(tmp_path, FORKING)
    num_programs, num_rounds = 14, 3

    def launched() -> list[ProgramHandle]:
        names = [f"n{number}" for number in range(num_programs)]
        return [node.launch(program, [name], tenant=TENANT) for name in names]

    async def result(handle: ProgramHandle, kills: EngineKills) -> Any:
        texts = []
        async for message in handle.attach():
            texts.append(message.text)
            await kills.heard()
            await handle.send("on")
        assert texts == list("012")
        return await handle.result()

    async def results(handles: list[ProgramHandle], after: list[int]) -> list[Any]:
        kills = EngineKills(node, after)
        async with asyncio.timeout(GROUP_S):
            return await asyncio.gather(*(result(handle, kills) for handle in handles))

    undisturbed = await results(launched(), [])
    num_kills = int(pytestconfig.getoption("--engine-kills"))
    moments = random.Random(num_kills)
    while num_kills > 0:
        after = moments.sample(range(1, num_programs * num_rounds), min(num_kills, MAX_RESTARTS))
        handles = launched()
        numbers = [handle.program for handle in handles]
        assert await results(handles, after) == undisturbed, after
        num_kills -= len(after)
        again = [h.program != number for h, number in zip(handles, numbers, strict=True)]
        assert any(again), "it has begun again"
        print(f"{num_programs} programs ended as undisturbed; engine killed after {sorted(after)}")


@on_the_nodes_loop
async def test_one_that_does_not_repeat_itself_is_ended(node: Node, tmp_path: Path) -> None:
    handle = node.launch(native(tmp_path, FORGETFUL), tenant=TENANT)
    await asyncio.wait_for(drive(node, handle, kill_at=1), 60)
    with pytest.raises(ProgramTerminated, match="did not repeat itself"):
        await handle.result()


@on_the_nodes_loop
async def test_the_children_of_a_program_live_on_while_it_begins_again(
    node: Node, tmp_path: Path
) -> None:
    num_before = len(node.programs(TENANT))
    handle = node.launch(native(tmp_path, PARENT), tenant=TENANT)
    number = handle.program
    (child,) = await drive(node, handle, kill_at=1)
    assert await handle.result() == ["child is here", "from the parent"]
    assert handle.program != number, "it has begun again"
    assert await node.program(child, TENANT).result() == "from the parent"
    assert len(node.programs(TENANT)) == num_before + 2, "no child was launched twice"


@on_the_nodes_loop
async def test_children_end_with_a_program_that_has_begun_again(node: Node, tmp_path: Path) -> None:
    source = PARENT.replace("await launched.send(", "return await api.receive() and (")
    handle = node.launch(native(tmp_path, source), tenant=TENANT)
    number = handle.program
    attachment = handle.attach()
    child = node.program((await anext(attachment)).text, TENANT)
    kill_engine(node)
    await node.wait_health(lambda health: not health.ready)
    await handle.send("on")
    await handle.send("end")
    await handle.result()
    assert handle.program != number, "it has begun again"
    with pytest.raises(ProgramCancelled, match="its parent has ended"):
        await child.result()
