"""Uploaded source in the sandbox: the same programs, their clients, their ends, their process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from linecache import getlines
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from library_args import LIBRARY_ARGS
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node

from quire.core.errors import (
    InvalidArgument,
    ProgramCancelled,
    ProgramFailed,
    ProgramTerminated,
    ProtocolMismatch,
    QuireError,
    TraitMissing,
)
from quire.node import Node, ProgramHandle
from quire.programs.library import LIBRARY
from quire.programs.runtime.native import NativeConfig
from quire.programs.runtime.running import ProgramState

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    node = sandbox_node(sandbox_config(sandbox_cache))
    await node.start()
    yield node
    await node.stop()


async def launch(node: Node, body: str, *args: str) -> ProgramHandle:
    return node.launch(await node.inspect(program(body)), args, tenant=TENANT)


async def messages_of(handle: ProgramHandle) -> list[str]:
    attachment = handle.attach()
    try:
        return [message.text async for message in attachment]
    finally:
        attachment.close()


async def test_source_runs_and_returns(node: Node) -> None:
    handle = await launch(
        node,
        '''
        @inferlet("greeter", hosts=["example.org"])
        async def main(api, name):
            """Says hello."""
            print("greeting", name)
            await api.send(f"hello {name}")
            answer = await api.receive()
            slept, length = asyncio.sleep(0.001, 1), asyncio.to_thread(len, "ab")
            return {"answer": answer, "sum": sum(await asyncio.gather(slept, length))}
        ''',
        "Kabo",
    )
    await handle.send("hi")
    assert await messages_of(handle) == ["hello Kabo"]
    assert await handle.result() == {"answer": "hi", "sum": 3}
    assert handle.name == "greeter"
    assert ("info", "greeting Kabo") in [(line.level, line.text) for line in handle.logs()]
    assert handle.record().state is ProgramState.FINISHED


async def test_arguments_become_what_the_annotations_say(node: Node) -> None:
    guest = await node.inspect(
        program(
            """
            from typing import Annotated

            @inferlet()
            async def main(api, text, n: Annotated[int, "How often."] = 3, *rest: list[str]):
                return [text, n, rest]
            """
        )
    )
    assert guest.manifest.parameters is not None
    assert [one.kind for one in guest.manifest.parameters] == ["text", "integer", "json"]
    assert guest.manifest.parameters[1].help == "How often."
    by_place = node.launch(guest, ("x", "5", '["y"]'), tenant=TENANT)
    assert await by_place.result() == ["x", 5, [["y"]]]
    by_name = node.launch(guest, ("x",), tenant=TENANT, named={"n": "7"})
    assert await by_name.result() == ["x", 7, []]
    assert by_name.record().named == {"n": "7"}
    with pytest.raises(InvalidArgument, match="argument n of program 'main' is 'many'"):
        node.launch(guest, ("x", "many"), tenant=TENANT)
    with pytest.raises(InvalidArgument, match="Expected `array`"):  # its annotations tell alone
        await node.launch(guest, ("x", "1", "{}"), tenant=TENANT).result()


async def test_the_standard_library_is_there_and_what_is_not_says_so(node: Node) -> None:
    handle = await launch(
        node,
        """
        import argparse, csv, decimal, fractions, graphlib, statistics, tomllib, uuid, zoneinfo
        import html.parser, sqlite3, unittest, xml.etree.ElementTree as tree

        @inferlet()
        async def main(api):
            missing = {}
            for name in ("ssl", "multiprocessing", "bz2", "no_such_module"):
                try:
                    __import__(name)
                except ModuleNotFoundError as exc:
                    missing[name] = str(exc)
            rows = sqlite3.connect(":memory:").execute("select 6 * 7").fetchall()
            figures = [statistics.mean([1, 2]), str(decimal.Decimal("0.1") + 1), rows[0][0]]
            texts = [tomllib.loads("a = 1"), next(csv.reader(["a,b"])), tree.fromstring("<a/>").tag]
            return [figures, texts, "\\u20ac".encode("cp1252").hex(), missing]
        """,
    )
    figures, texts, encoded, missing = await handle.result()
    assert figures == [1.5, "1.1", 42]
    assert texts == [{"a": 1}, ["a", "b"], "a"]
    assert encoded == "80"
    assert missing["ssl"].startswith("the sandbox has no module 'ssl': it needs")
    assert missing["multiprocessing"].startswith("the sandbox has no module 'multiprocessing'")
    assert missing["bz2"].startswith("the sandbox has no module '_bz2'")
    assert missing["no_such_module"] == "No module named 'no_such_module'"


ARGS = {**LIBRARY_ARGS, "async_tools": ("say", "0")}


@pytest.mark.parametrize("name", ARGS)
async def test_library_programs_run_unchanged(node: Node, name: str) -> None:
    """The same file in both runtimes, to the same result and messages."""
    trusted, args = LIBRARY[name], ARGS[name]
    untrusted = await node.inspect("".join(getlines(str(trusted.source))).encode())
    await node.launch(trusted, args, tenant=TENANT).result()  # so that both find a warm cache
    outside = node.launch(trusted, args, tenant=TENANT)
    expected = await outside.result()  # one after the other: they would import from each other
    inside = node.launch(untrusted, args, tenant=TENANT)
    assert inside.name == outside.name
    assert await inside.result() == expected
    # how tokens are grouped into messages depends on when they come
    assert "".join(await messages_of(inside)) == "".join(await messages_of(outside))


async def test_source_that_is_no_program_is_told_why(node: Node) -> None:
    for source, words in {
        b"x = 1": "0 @inferlet entries",
        b"def broken(": "SyntaxError",
        b"import no_such_module": "No module named 'no_such_module'",
        b"raise SystemExit(3)": "SystemExit: 3",
        program("@inferlet()\ndef main(api): pass"): "the entry must be 'async def",
        b"while True: pass": "takes too long to load",
    }.items():
        with pytest.raises(QuireError) as caught:
            await node.inspect(source)
        assert words in caught.value.message
    with pytest.raises(InvalidArgument, match="at most 1048576 are taken"):
        await node.inspect(b"#" * (1 << 20) + b"\n")


async def test_a_failure_shows_the_programs_own_lines(node: Node) -> None:
    handle = await launch(
        node,
        """
        @inferlet()
        async def main(api):
            await inner()

        async def inner():
            raise ValueError("on purpose")
        """,
    )
    with pytest.raises(ProgramFailed) as caught:
        await handle.result()
    assert 'raise ValueError("on purpose")' in caught.value.message
    assert "in inner" in caught.value.message
    assert "quire/" not in caught.value.message, "frames of the runner say nothing to its owner"


async def test_results_that_are_no_json_fail(node: Node) -> None:
    handle = await launch(node, "@inferlet()\nasync def main(api):\n    return object()\n")
    with pytest.raises(ProgramFailed, match="returned a value of type object"):
        await handle.result()


async def test_an_export_brings_its_text_to_a_guest(node: Node) -> None:
    exporter = await launch(
        node,
        """
        @inferlet()
        async def main(api):
            return await Context(api).fill("The age of Kabo").export("kabo", ttl_s=60)
        """,
    )
    num_tokens = await exporter.result()
    importer = await launch(
        node,
        """
        @inferlet()
        async def main(api):
            ctx = await Context.from_export(api, "kabo")
            return [ctx.text, len(ctx), len((await ctx.generate(max_tokens=1)).token_ids)]
        """,
    )
    assert await importer.result() == ["The age of Kabo", num_tokens + 1, 1]


async def test_commands_that_nobody_awaits_are_told(node: Node) -> None:
    handle = await launch(
        node,
        """
        @inferlet()
        async def main(api):
            queue = api.create_queue()
            page = api.alloc_kvpage(queue, 1)
            api.dealloc_kvpage(queue, page)
            api.issuer.new_pages(queue, 1)
            api.import_kvpage(queue, "no such export")
            asyncio.create_task(asyncio.sleep(600), name="forgotten")
        """,
    )
    with pytest.raises(ProgramFailed, match="no such export"):
        await handle.result()
    assert any("forgotten" in line.text for line in handle.logs())


async def test_missing_traits_are_refused(node: Node) -> None:
    with pytest.raises(QuireError, match="version 99"):
        await node.inspect(program("@inferlet(traits={'Core': 99})\nasync def main(api): pass"))
    wanting = program("@inferlet(traits={'Adapter': 1})\nasync def main(api): pass")
    with pytest.raises(TraitMissing, match="needs Adapter"):
        node.launch(await node.inspect(wanting), tenant=TENANT)


async def test_back_pressure_reaches_the_program(node: Node) -> None:
    handle = await launch(
        node,
        """
        from quire.core.errors import MailboxFull

        @inferlet()
        async def main(api):
            sent = 0
            try:
                while True:
                    api.send("x" * 10)
                    sent += 1
            except MailboxFull:
                return sent
        """,
    )
    assert await handle.result() == 1024


async def test_messages_keep_their_order_both_ways(node: Node) -> None:
    handle = await launch(
        node,
        """
        @inferlet()
        async def main(api):
            for _ in range(200):
                await api.send((await api.receive()) + "!")
        """,
    )

    async def feed() -> None:
        for number in range(200):
            await handle.send(str(number))

    feeding = asyncio.create_task(feed())
    assert await messages_of(handle) == [f"{number}!" for number in range(200)]
    await feeding
    await handle.result()


async def test_cancelling_lets_a_program_clean_up(node: Node) -> None:
    handle = await launch(
        node,
        """
        @inferlet()
        async def main(api):
            await api.send("waiting")
            try:
                await api.receive()
            finally:
                print("cleaned up")
        """,
    )
    attachment = handle.attach()
    await anext(attachment)
    handle.terminate("enough")
    with pytest.raises(ProgramCancelled, match="enough"):
        await handle.result()
    assert "cleaned up" in [line.text for line in handle.logs()]
    attachment.close()


async def test_a_program_that_will_not_end_is_ended(sandbox_cache: Path) -> None:
    node = sandbox_node(sandbox_config(sandbox_cache), native=NativeConfig(grace_s=0.05))
    await node.start()
    handle = await launch(
        node,
        """
        @inferlet()
        async def main(api):
            await api.send("waiting")
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    pass
        """,
    )
    attachment = handle.attach()
    await anext(attachment)
    handle.terminate()
    with pytest.raises(ProgramCancelled):
        await handle.result()
    attachment.close()
    await node.inspect(
        program("@inferlet()\nasync def main(api): pass")
    )  # an answer behind its end
    used = handle.record().used
    assert used is not None
    assert used.guest_cpu_s is not None
    assert used.guest_cpu_s > 0, "the time of a guest that was stopped"
    assert used.guest_memory_bytes is not None
    assert used.guest_memory_bytes >= 16 << 20, "it holds the interpreter"
    await node.stop()


async def test_a_lost_process_is_told_and_replaced(node: Node) -> None:
    body = """
        @inferlet()
        async def main(api):
            queue = api.create_queue()
            api.alloc_kvpage(queue, 3)
            await api.synchronize(queue)
            await api.send("here")
            return await api.receive()
        """
    lost = [await launch(node, body) for _ in range(2)]
    attachments = [handle.attach() for handle in lost]
    for attachment in attachments:
        await anext(attachment)
    (pid,) = node.sandbox_pids()
    os.kill(pid, signal.SIGKILL)
    for handle in lost:
        with pytest.raises(ProgramTerminated, match=r"was lost .*SIGKILL.*launch it again"):
            await handle.result()
    assert all(row.row.num_pages == 0 for row in node.processes())
    again = await launch(node, body)
    await again.send("back")
    assert await again.result() == "back"
    assert node.sandbox_pids() != [pid]
    for attachment in attachments:
        attachment.close()


async def test_another_version_is_refused(sandbox_cache: Path) -> None:
    node = sandbox_node(sandbox_config(sandbox_cache), mode="old")
    await node.start()
    with pytest.raises(ProtocolMismatch):
        await launch(node, "@inferlet()\nasync def main(api): pass")
    await node.stop()


async def test_programs_spread_over_processes(sandbox_cache: Path) -> None:
    node = sandbox_node(sandbox_config(sandbox_cache, processes=2))
    await node.start()
    body = """
        @inferlet()
        async def main(api):
            return await api.receive()
        """
    handles = [await launch(node, body) for _ in range(4)]
    for handle in handles:
        await handle.send("go")
        assert await handle.result() == "go"
    assert len(set(node.sandbox_pids())) == 2
    await node.stop()


async def test_names_of_private_addresses_are_refused(node: Node) -> None:
    """A manifest may name any host; what it resolves to is looked at before each request."""
    handle = await launch(
        node,
        """
        @inferlet(hosts=["localhost", "127.0.0.1"])
        async def main(api):
            said = []
            for host in ("localhost", "127.0.0.1"):
                try:
                    await api.http_get(f"http://{host}:9/")
                except Exception as exc:
                    said.append(exc.message)
            return said
        """,
    )
    first, second = await handle.result()
    assert "host 'localhost' has no address, or a private one" in first
    assert "private addresses are refused" in first
    assert "private addresses are refused" in second
