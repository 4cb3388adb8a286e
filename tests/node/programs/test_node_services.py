"""What programs ask of their node beside the model: native and sandboxed, from the same source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node
from web_stub import WebStub

from quire.core.config import TenantConfig
from quire.core.errors import ProgramCancelled, ProgramFailed, TraitMissing
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
    config = sandbox_config(sandbox_cache, allow_private_hosts=True)
    node = sandbox_node(replace(config, tenants=tenants))
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


async def test_a_topic_outside_the_manifest_is_forbidden(
    node: Node, form: str, tmp_path: Path
) -> None:
    body = """
    @inferlet("nosy", topics=["mine.*"])
    async def main(api):
        assert await api.broadcast("mine.own", "m") == 0
        await api.broadcast("news", "m")
    """
    handle = await launch(node, form, tmp_path, body)
    with pytest.raises(ProgramFailed, match="topic 'news' is not allowed for this program"):
        await handle.result()


PARENT = """
@inferlet("parent", topics=["news.*"])
async def main(api, name, *args):
    if name == "child":
        api.log("info", "at work", args=list(args), seed_draw=api.random().randrange(1000))
        await api.send(await api.receive())
        return list(args)
    child = await api.launch("parent", ["child", *args], thread=7)
    await child.send("hello")
    heard = await child.receive()
    result = await child.join()
    logged = [line["text"] for line in await child.logs() if line["fields"]]
    shipped = await api.launch("text_completion", ["hello", "3"])
    await shipped.join()
    return {"heard": heard, "result": result, "logged": logged}
"""


async def test_a_guest_launches_itself_and_the_library(node: Node, tmp_path: Path) -> None:
    handle = await launch(node, "sandboxed", tmp_path, PARENT, "top", "a", "b")
    assert await handle.result() == {"heard": "hello", "result": ["a", "b"], "logged": ["at work"]}
    below = [record for record in node.programs(TENANT) if record.parent == handle.id]
    assert [(record.name, record.parent_thread) for record in below] == [
        ("parent", 7),
        ("text_completion", 0),
    ]
    assert handle.record().parent_thread is None


async def test_source_is_launched_as_a_guest(node: Node, form: str, tmp_path: Path) -> None:
    body = """
    CHILD = '''
    import os
    from quire.programs.sdk import inferlet

    @inferlet("computes")
    async def main(api, number):
        print("computing")
        if number == "0":
            raise ValueError("zero")
        return 10 // int(number)
    '''
    import textwrap
    from quire.core.errors import ProgramFailed

    @inferlet("parent")
    async def main(api):
        source = textwrap.dedent(CHILD)
        child = await api.launch(source=source, args=["2"])
        result = await child.join()
        wrong = await api.launch(source=source, args=["0"])
        try:
            await wrong.join()
        except ProgramFailed as exc:
            shown = exc.details["traceback"]
        return [result, shown, [line["text"] for line in await child.logs()]]
    """
    handle = await launch(node, form, tmp_path, body)
    result, shown, log = await handle.result()
    assert result == 5
    assert 'raise ValueError("zero")' in shown
    assert "computing" in log


async def test_a_child_reaches_no_more_than_its_parent(node: Node, tmp_path: Path) -> None:
    body = """
    CHILD = '''
    from quire.core.errors import Forbidden
    from quire.programs.sdk import inferlet

    @inferlet("greedy", topics=["*"], hosts=["*"])
    async def main(api):
        reached = []
        for topic in ("news.de", "weather"):
            try:
                reached.append(await api.broadcast(topic, "m"))
            except Forbidden:
                reached.append("forbidden")
        try:
            await api.http_get("http://example.org/")
        except Forbidden as exc:
            reached.append("not allowed" in exc.message)
        return reached
    '''
    import textwrap

    @inferlet("parent", topics=["news.*"])
    async def main(api):
        return await (await api.launch(source=textwrap.dedent(CHILD))).join()
    """
    handle = await launch(node, "sandboxed", tmp_path, body)
    assert await handle.result() == [0, "forbidden", True]


async def test_a_fork_bomb_of_guests_ends_in_its_own_error(node: Node, tmp_path: Path) -> None:
    body = """
    from quire.core.quotas import Quotas

    @inferlet("bomb", quotas=Quotas(max_children=5))
    async def main(api):
        children = []
        try:
            while True:
                children.append(await api.launch("bomb"))
        finally:
            await asyncio.gather(*(child.join() for child in children), return_exceptions=True)
    """
    bomb = await launch(node, "sandboxed", tmp_path, body)
    other = await launch(node, "sandboxed", tmp_path, WORKERS)
    with pytest.raises(ProgramFailed, match="5 descendants of one launched program are alive"):
        await bomb.result()
    assert sorted(await other.result()) == ["0", "1"]
    family = [record for record in node.programs(TENANT) if record.name == "bomb"]
    assert len(family) >= 2
    for record in family:
        with pytest.raises((ProgramFailed, ProgramCancelled)):
            await node.program(record.id, TENANT).result()


async def test_a_fork_of_guests_is_no_way_around_a_quota(node: Node, tmp_path: Path) -> None:
    body = """
    from quire.core.quotas import Quotas

    @inferlet("fork", quotas=Quotas(max_generated_tokens=10))
    async def main(api, part=""):
        if part:
            await Context(api).fill("once").generate_until(max_tokens=4, ignore_eos=True)
            return 4
        children = [await api.launch("fork", ["child"]) for _ in range(5)]
        ended = await asyncio.gather(*(c.join() for c in children), return_exceptions=True)
        await api.send(str(sum(one for one in ended if isinstance(one, int))))
        await Context(api).fill("again").generate_until(max_tokens=4, ignore_eos=True)
    """
    fork = await launch(node, "sandboxed", tmp_path, body)
    other = await launch(node, "sandboxed", tmp_path, WORKERS)
    with pytest.raises(ProgramFailed, match="by program 'fork' and those that it has launched"):
        await fork.result()
    assert int((await anext(aiter(fork.attach()))).text) <= 8
    assert sorted(await other.result()) == ["0", "1"]
    family = [record for record in node.programs(TENANT) if record.parent == fork.id]
    assert len(family) == 5
    refused = [record.error.message for record in family if record.error is not None]
    assert len(refused) >= 3
    assert all("10 tokens were generated by program 'fork' and those" in one for one in refused)


async def test_terminating_a_parent_ends_its_children(
    node: Node, form: str, tmp_path: Path
) -> None:
    body = """
    CHILD = '''
    import asyncio
    from quire.programs.sdk import inferlet

    @inferlet("forever")
    async def main(api):
        await asyncio.Event().wait()
    '''
    import textwrap

    @inferlet("parent")
    async def main(api):
        child = await api.launch(source=textwrap.dedent(CHILD))
        await api.send(child.id)
        await child.join()
    """
    parent = await launch(node, form, tmp_path, body)
    child = node.program((await anext(aiter(parent.attach()))).text, TENANT)
    assert child.record().parent == parent.id
    parent.terminate()
    with pytest.raises(ProgramCancelled):
        await parent.result()
    with pytest.raises(ProgramCancelled, match="its parent has ended"):
        await child.result()


async def test_a_seed_makes_a_launch_repeatable(node: Node, tmp_path: Path) -> None:
    body = """
    @inferlet("draws")
    async def main(api):
        return [api.random().random(), api.random("other").random()]
    """
    drawn = []
    for form in FORMS:
        found = await program_of(node, form, tmp_path, body)
        handle = node.launch(found, tenant=TENANT, seed=7)
        assert handle.record().seed == 7
        drawn.append(await handle.result())
    assert drawn[0] == drawn[1]
    free = [node.launch(found, tenant=TENANT) for _ in range(2)]
    assert len({str(await handle.result()) for handle in free} | {str(drawn[0])}) == 3


async def test_what_a_program_logs_stands_in_its_log(node: Node, form: str, tmp_path: Path) -> None:
    body = """
    @inferlet("logs")
    async def main(api):
        api.log("debug", "first", step=1)
        api.log("warning", "second", of=["a", {"b": None}])
    """
    handle = await launch(node, form, tmp_path, body)
    await handle.result()
    lines = [(line.level, line.text, line.fields) for line in handle.logs()]
    assert ("debug", "first", {"step": 1}) in lines
    assert ("warning", "second", {"of": ["a", {"b": None}]}) in lines


async def test_what_one_program_stores_another_finds(node: Node, form: str, tmp_path: Path) -> None:
    body = """
    @inferlet("keeps", stores=["notes"])
    async def main(api, what):
        if what == "put":
            await api.store_put("key", {"a": [1, None]}, store="notes", ttl_s=60)
            await api.blob_put("key", bytes(range(256)), store="notes")
            return await api.store_compare_and_set("key", {"a": [1, None]}, "new", store="notes")
        blob = await api.blob_get("key", store="notes")
        found = await api.store_get("key", store="notes")
        keys = await api.store_list(store="notes")
        return [found, keys, blob == bytes(range(256)), await api.blob_get("none", store="notes")]
    """
    other = FORMS[1 - FORMS.index(form)]
    assert await (await launch(node, form, tmp_path, body, "put")).result() is True
    found = await (await launch(node, other, tmp_path, body, "get")).result()
    assert found == ["new", ["key"], True, None]


async def test_a_store_outside_the_manifest_is_forbidden(
    node: Node, form: str, tmp_path: Path
) -> None:
    body = """
    @inferlet("nosy")
    async def main(api):
        await api.store_get("key")
    """
    handle = await launch(node, form, tmp_path, body)
    with pytest.raises(ProgramFailed, match="store 'default' is not allowed for this program"):
        await handle.result()


async def test_an_answer_is_read_while_it_comes(
    node: Node, form: str, tmp_path: Path, web: WebStub
) -> None:
    body = """
    @inferlet("reads", hosts=["127.0.0.1"])
    async def main(api, url):
        async with api.http_stream(url) as reply:
            events = reply.events()
            first = await anext(events)
            await api.send(f"{reply.status} {first.event} {first.data}")
            rest = [event.data async for event in events]
        async with api.http_stream(url) as reply:
            again = [part async for part in reply]
        return [rest, b"".join(again).decode()]
    """
    handle = await launch(node, form, tmp_path, body, web.url("/events"))
    assert (await anext(aiter(handle.attach()))).text == "200 first 1"
    web.release()
    rest, again = await handle.result()
    assert rest == ["2\n3"]
    assert again == "event: first\ndata: 1\n\ndata: 2\ndata: 3\n\n"


async def test_a_stream_from_a_host_outside_the_manifest_is_forbidden(
    node: Node, form: str, tmp_path: Path, web: WebStub
) -> None:
    body = """
    @inferlet("nosy", hosts=["example.org"])
    async def main(api, url):
        async with api.http_stream(url):
            pass
    """
    handle = await launch(node, form, tmp_path, body, web.url("/events"))
    with pytest.raises(ProgramFailed, match=r"host '127\.0\.0\.1' is not allowed"):
        await handle.result()
    assert web.paths == []


async def test_so_many_streams_at_a_time(node: Node, tmp_path: Path, web: WebStub) -> None:
    body = """
    from contextlib import AsyncExitStack
    from quire.core.quotas import Quotas

    @inferlet("hoards", hosts=["127.0.0.1"], quotas=Quotas(max_outstanding_io=2))
    async def main(api, url):
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(api.http_stream(url))
    """
    handle = await launch(node, "sandboxed", tmp_path, body, web.url("/events"))
    with pytest.raises(ProgramFailed, match="2 HTTP responses are being streamed; 2 are allowed"):
        await handle.result()


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ('{"Messaging": 99}', "needs version 99 of the trait Messaging; this release has 1 to 2"),
        ('{"Hologram": 1}', "needs the trait 'Hologram', which this release does not have"),
    ],
)
async def test_a_trait_of_another_release_is_refused_when_it_is_pushed(
    node: Node, traits: str, words: str
) -> None:
    code = program(f"""
    @inferlet("ahead", traits={traits})
    async def main(api):
        pass
    """)
    with pytest.raises(TraitMissing, match=words):
        await node.upload(code, TENANT)


async def test_a_trait_that_no_model_has_is_refused_at_push_and_launch(
    node: Node, form: str, tmp_path: Path
) -> None:
    body = """
    @inferlet("sees", traits={"Core": 2, "Adapter": 1, "InputImage": 1})
    async def main(api):
        pass
    """
    found = await program_of(node, form, tmp_path, body)
    with pytest.raises(TraitMissing, match=r"'sees' needs .*InputImage.* model 'fake' does not"):
        node.launch(found, tenant=TENANT)
    with pytest.raises(TraitMissing, match="'sees' needs"):
        await node.upload(program(body), TENANT)
    assert "sees" not in [upload.manifest.name for upload in node.uploads.all(TENANT)]


async def test_a_program_that_another_release_has_uploaded_is_refused_at_launch(
    node: Node, tmp_path: Path
) -> None:
    body = """
    @inferlet("kept")
    async def main(api):
        pass
    """
    found = await program_of(node, "sandboxed", tmp_path, body)
    assert isinstance(found, GuestProgram)
    newer = msgspec.structs.replace(found.manifest, traits={"Core": 7})
    with pytest.raises(TraitMissing, match="needs version 7 of the trait Core"):
        node.launch(replace(found, manifest=newer), tenant=TENANT)
