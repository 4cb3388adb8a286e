"""What programs ask of their node beside the model: native and sandboxed, from the same source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node

from quire.core.config import TenantConfig
from quire.core.errors import ProgramCancelled, ProgramFailed
from quire.core.ids import TenantId
from quire.node import Node, ProgramHandle
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.sandbox.program import GuestProgram

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

OTHER = TenantId("other")
FORMS = ("native", "sandboxed")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    tenants = (TenantConfig(TENANT), TenantConfig(OTHER))
    node = sandbox_node(replace(sandbox_config(sandbox_cache), tenants=tenants))
    await node.start()
    yield node
    await node.stop()


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def program_of(node: Node, form: str, folder: Path, body: str) -> Inferlet | GuestProgram:
    """The program of ``body``, to be run in one of both ways."""
    code = program(body)
    if form == "sandboxed":
        return await node.inspect(code)
    path = folder / "program.py"
    path.write_bytes(code)
    return load_inferlet(path)


async def launch(node: Node, form: str, folder: Path, body: str, *args: str) -> ProgramHandle:
    return node.launch(await program_of(node, form, folder, body), args, tenant=TENANT)


LISTENER = """
@inferlet("listener", topics=["news", "work"])
async def main(api):
    async with await api.subscribe("news", buffer=4) as news:
        await api.send("listening")
        heard = [await news.receive() for _ in range(2)]
        try:
            async with asyncio.timeout(0.01):
                await news.receive()
        except TimeoutError:
            await api.send("waited")
        heard.append(await news.receive())
    return heard
"""
SPEAKER = """
@inferlet("speaker", topics=["news", "work"])
async def main(api, *messages):
    reached = [await api.broadcast("news", message) for message in messages]
    return reached
"""
WORKERS = """
@inferlet("workers", topics=["work"])
async def main(api):
    takers = [asyncio.create_task(api.pull("work")) for _ in range(3)]
    await asyncio.sleep(0)
    takers[0].cancel()
    for number in range(2):
        await api.push("work", str(number))
    results = await asyncio.gather(*takers, return_exceptions=True)
    return [str(result) for result in results[1:]]
"""


@pytest.mark.parametrize("speaker_form", FORMS)
async def test_programs_of_both_kinds_hear_each_other(
    node: Node, form: str, speaker_form: str, tmp_path: Path
) -> None:
    listener = await launch(node, form, tmp_path, LISTENER)
    messages = aiter(listener.attach())
    assert (await anext(messages)).text == "listening"
    speaker = await launch(node, speaker_form, tmp_path, SPEAKER, "one", "two")
    assert await speaker.result() == [1, 1]
    assert (await anext(messages)).text == "waited"
    speaker = await launch(node, speaker_form, tmp_path, SPEAKER, "three")
    assert await speaker.result() == [1]
    assert await listener.result() == ["one", "two", "three"]
    speaker = await launch(node, speaker_form, tmp_path, SPEAKER, "four")
    assert await speaker.result() == [0]


async def test_a_queue_gives_each_message_to_one_taker(
    node: Node, form: str, tmp_path: Path
) -> None:
    workers = await launch(node, form, tmp_path, WORKERS)
    assert sorted(await workers.result()) == ["0", "1"]


async def test_another_tenants_topic_is_another_topic(node: Node, tmp_path: Path) -> None:
    listener = await launch(node, "sandboxed", tmp_path, LISTENER)
    messages = aiter(listener.attach())
    assert (await anext(messages)).text == "listening"
    stranger = await program_of(node, "sandboxed", tmp_path, SPEAKER)
    handle = node.launch(stranger, ("theirs",), tenant=OTHER)
    assert await handle.result() == [0]
    listener.terminate()
    with pytest.raises(ProgramCancelled):
        await listener.result()


async def test_a_topic_outside_the_manifest_is_forbidden_to_a_guest(
    node: Node, tmp_path: Path
) -> None:
    body = """
    @inferlet("nosy", topics=["mine.*"])
    async def main(api):
        assert await api.broadcast("mine.own", "m") == 0
        await api.broadcast("news", "m")
    """
    handle = await launch(node, "sandboxed", tmp_path, body)
    with pytest.raises(ProgramFailed, match="topic 'news' is not allowed for this program"):
        await handle.result()
