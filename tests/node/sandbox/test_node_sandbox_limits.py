"""What a sandboxed program may not do: each ends in its own clear error, and others go on.

The others are counted, never timed: a bystander makes so many steps while the culprit is at it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import BYSTANDER, needs_sandbox, program, sandbox_config, sandbox_node, steps
from web_stub import WebStub

from quire.core.config import TenantConfig
from quire.core.errors import ProgramFailed, ProgramTerminated, QuireError, QuotaExceeded
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.node import Node, ProgramHandle

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

OTHER = TenantId("other")
MAX_TURN_MS = 500
MAX_CALLS_PER_S = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    config = sandbox_config(
        sandbox_cache,
        max_turn_ms=MAX_TURN_MS,
        max_cpu_ms=2000,
        max_memory_bytes=96 << 20,
        max_calls_per_s=MAX_CALLS_PER_S,
        max_outstanding_io=2,
        allow_private_hosts=True,
    )
    tenants = (TenantConfig(TENANT), TenantConfig(OTHER))
    config = type(config)(engines=config.engines, sandbox=config.sandbox, tenants=tenants)
    node = sandbox_node(config)
    await node.start()
    yield node
    await node.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def bystander(node: Node) -> AsyncIterator[ProgramHandle]:
    """A program of another tenant that makes one step for each message, in the same process."""
    handle = node.launch(await node.inspect(BYSTANDER), tenant=OTHER)
    yield handle
    if not handle.ended:
        await handle.send("end")
    await handle.wait_ended()


async def end_of(node: Node, body: str, *args: str, quotas: Quotas | None = None) -> QuireError:
    """The error that a program of ``body`` ends with."""
    source = await node.inspect(program(body))
    handle = node.launch(source, args, tenant=TENANT, quotas=quotas)
    with pytest.raises(QuireError) as caught:
        await handle.result()
    return caught.value


async def test_an_endless_loop_ends_alone(node: Node, bystander: ProgramHandle) -> None:
    await steps(bystander, 3)
    culprit = node.launch(
        await node.inspect(
            program(
                """
                @inferlet()
                async def spin(api):
                    await api.send("spinning")
                    while True:
                        pass
                """
            )
        ),
        tenant=TENANT,
    )
    await steps(bystander, 10)
    with pytest.raises(QuotaExceeded, match=f"'spin' computed for {MAX_TURN_MS} ms without"):
        await culprit.result()
    await steps(bystander, 3)
    assert bystander.record().num_messages == 16


async def test_children_are_no_way_around_the_bound_on_time(
    node: Node, bystander: ProgramHandle
) -> None:
    """Parent and child have it together: neither ends for what it has computed itself."""
    error = await end_of(
        node,
        """
        @inferlet()
        async def family(api, *args):
            if args:
                while True:
                    for _ in range(1000):
                        pass
                    await asyncio.sleep(0.001)
            children = [await api.launch("family", ["spin"]) for _ in range(2)]
            await asyncio.gather(*(child.join() for child in children), return_exceptions=True)
            return "it could go on"
        """,
        quotas=Quotas(max_cpu_ms=400),
    )
    assert "its family (its launcher and their children) have used 400 ms" in error.message
    await steps(bystander, 3)


async def test_a_loop_that_awaits_ends_with_its_time(node: Node) -> None:
    """It gives way to others at each turn, so it is only the whole that is too much."""
    error = await end_of(
        node,
        """
        @inferlet()
        async def busy(api):
            while True:
                await asyncio.sleep(0.001)
                sum(range(100_000))
        """,
        quotas=Quotas(max_cpu_ms=300),
    )
    assert isinstance(error, QuotaExceeded)
    assert "has used 300 ms of processor time" in error.message


async def test_a_memory_bomb_is_a_memory_error(node: Node, bystander: ProgramHandle) -> None:
    error = await end_of(
        node,
        """
        @inferlet()
        async def hoard(api):
            kept = []
            while True:
                kept.append(bytearray(1 << 22))
                await asyncio.sleep(0)
        """,
    )
    assert isinstance(error, ProgramFailed)
    assert "MemoryError" in error.message
    await steps(bystander, 3)


@pytest.mark.parametrize("wait", ["await api.synchronize(queue)", "api.alloc_kvpage(queue, 1)"])
async def test_a_call_flood_is_over_its_quota(
    node: Node, bystander: ProgramHandle, wait: str
) -> None:
    error = await end_of(
        node,
        f"""
        @inferlet()
        async def flood(api):
            queue = api.create_queue()
            for _ in range(2000):
                {wait}
        """,
    )
    assert isinstance(error, QuotaExceeded)
    assert f"more than {MAX_CALLS_PER_S} calls within a second" in error.message
    await steps(bystander, 3)


async def test_a_flood_of_questions_is_over_its_quota(node: Node) -> None:
    error = await end_of(
        node,
        """
        @inferlet()
        async def ask(api):
            for _ in range(5000):
                api.tokenize("hello")
        """,
    )
    assert isinstance(error, QuotaExceeded)


async def test_a_whole_distribution_is_refused(node: Node) -> None:
    error = await end_of(
        node,
        """
        @inferlet()
        async def read(api):
            queue = api.create_queue()
            page, embed = api.alloc_kvpage(queue, 1), api.alloc_emb(queue, 1)
            api.embed_txt(queue, [5], [0], embed)
            api.forward(queue, [], embed, page, embed)
            await api.get_next_dist(queue, embed, top_k=10_000)
        """,
    )
    assert isinstance(error, ProgramFailed)
    assert "256" in error.message


async def test_a_host_that_was_not_declared_is_forbidden(node: Node, web: WebStub) -> None:
    error = await end_of(
        node,
        """
        @inferlet(hosts=["example.org"])
        async def fetch(api, url):
            await api.http_get(url)
        """,
        web.url("/"),
    )
    assert "host '127.0.0.1' is not allowed" in error.message
    assert error.details["code"] == "forbidden"
    assert web.paths == []


async def test_a_redirect_to_another_host_is_forbidden(node: Node, web: WebStub) -> None:
    error = await end_of(
        node,
        """
        @inferlet(hosts=["127.0.0.1"])
        async def fetch(api, url):
            await api.http_get(url)
        """,
        web.url("/redirect?to=http://localhost:1/secret"),
    )
    assert "host 'localhost' is not allowed" in error.message
    assert web.paths == ["/redirect"]


async def test_a_declared_host_answers(node: Node, web: WebStub) -> None:
    source = program(
        """
        @inferlet(hosts=["127.0.0.1"])
        async def fetch(api, url):
            reply = await api.http_get(url)
            posted = await api.http_post(url, b"\\x00\\xff")
            return [reply.status, reply.json(), posted.ok, len(posted.body)]
        """
    )
    handle = node.launch(await node.inspect(source), [web.url("/json")], tenant=TENANT)
    assert await handle.result() == [200, {"answer": 42}, True, len('{"answer": 42}')]
    assert web.bodies == [b"", b"\x00\xff"]


async def test_too_many_requests_at_a_time_are_refused(node: Node, web: WebStub) -> None:
    error = await end_of(
        node,
        """
        @inferlet(hosts=["127.0.0.1"])
        async def fetch(api, url):
            await asyncio.gather(*(api.http_get(url) for _ in range(3)))
        """,
        web.url("/held"),
    )
    assert error.details["code"] == "quota_exceeded"
    assert "2 are allowed at a time" in error.message


async def test_another_tenants_export_is_unknown(node: Node) -> None:
    share = program(
        """
        @inferlet()
        async def share(api):
            queue = api.create_queue()
            api.alloc_kvpage(queue, 1)
            await api.export_kvpage(queue, api.alloc_kvpage(queue, 1), "secret")
            await api.receive()
        """
    )
    owner = node.launch(await node.inspect(share), tenant=OTHER)
    error = await end_of(
        node,
        """
        @inferlet()
        async def steal(api):
            await api.import_kvpage(api.create_queue(), "secret")
        """,
    )
    assert error.details["code"] == "unknown_handle"
    owner.terminate()
    await owner.wait_ended()


ESCAPES = {
    "files": ("open('/etc/passwd')", "No such file or directory"),
    "folders": ("import os; os.listdir('/')", "No such file or directory"),
    "writing": ("open('x', 'w')", "No such file or directory"),
    "sockets": ("import socket; socket.socket()", "no sockets: use api.http_get"),
    "a client": (
        "import urllib.request; urllib.request.urlopen('http://example.org')",
        "no sockets: use api.http_get",
    ),
    "raw sockets": ("import _socket; _socket.socket()", "tcp-create-socket"),
    "names": ("import _socket; _socket.getaddrinfo(b'localhost', 80)", "unknown import"),
    "sleep": ("import time; time.sleep(600)", "would block"),
    "raw sleep": ("import select; select.select([], [], [], 600)", "unknown import"),
    "exit": ("import os; os._exit(0)", "wasi:cli/exit"),
    "abort": ("import os; os.abort()", "unreachable"),
    "processes": ("import os; os.fork()", "has no attribute 'fork'"),
    "threads": ("import threading; threading.Thread(target=print).start()", "can't start new"),
    "memory": ("import ctypes", "no module 'ctypes'"),
    "recursion": ("f = lambda: f(); f()", "RecursionError"),
}


@pytest.mark.parametrize("escape", ESCAPES)
async def test_there_is_no_way_out(node: Node, bystander: ProgramHandle, escape: str) -> None:
    code, words = ESCAPES[escape]
    error = await end_of(
        node,
        f"""
        @inferlet()
        async def main(api):
            {code}
        """,
    )
    assert words in error.message
    assert isinstance(error, ProgramFailed | ProgramTerminated)
    await steps(bystander, 1)


FORGERIES = {
    "no call": 'say("nonsense")',
    "no array": "say({'queue': 1})",
    "another type": "say(c.Issue('one', []))",
    "no command": "say(c.Issue(1, [{'type': 'Nonsense'}]))",
    "huge number": "say(c.Cancel(1 << 80))",
    "not a number": "say(m.Send(float('nan')))",
    "its own end twice": "say(m.Ended('finished', '1', None, [], [])); "
    "say(m.Ended('finished', '2', None, [], []))",
    "an end without a reason": "say(m.Ended('failed', 'null', None, [], []))",
    "a result that is not JSON": "say(m.Ended('finished', '{', None, [], []))",
    "an unknown engine": "say(c.CreateQueue(1, 'nowhere', 0, 0, 0))",
    "a negative queue": "say(c.CreateQueue(-5, api.available_models()[0].served.base, -1, -1, 0))",
    "the same queue twice": "[say(c.CreateQueue(7, 'fake', 0, 0, 0)) for _ in range(2)]",
    "a queue that is not": "say(c.CloseQueue(99)); say(c.ResetQueue(98)); "
    "say(c.SetQueuePriority(97, 1)); say(c.Cancel(96))",
    "a deep result": "say(m.Ended('finished', '[' * 100_000, None, [], []))",
    "a result too deep to show": "say(m.Ended('finished', '[' * 250 + ']' * 250, None, [], []))",
    "an error that takes arguments": "say(m.Ended('failed', 'null', "
    "m.ErrorRecord('invalid_argument', 'x', False, {'message': 1}), [], []))",
    "a mailbox flood": "[say(m.Send('x')) for _ in range(MANY)]",
    "reads that never were": "say(m.Received(1 << 60)); say(m.Received(-5))",
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_guest_that_lies_harms_itself_alone(
    node: Node, bystander: ProgramHandle, forgery: str
) -> None:
    """Programs can reach the runner's own objects; the host believes nothing that they say."""
    source = program(
        f"""
        from quire.core import calls as c
        from quire.programs.sandbox import messages as m

        @inferlet()
        async def main(api):
            MANY = {MAX_CALLS_PER_S - 50}
            say = api.issuer.port._say
            {FORGERIES[forgery]}
            await asyncio.sleep(0)
        """
    )
    handle = node.launch(await node.inspect(source), tenant=TENANT)
    await handle.wait_ended()
    error = handle.record().error
    assert error is None or "AttributeError" not in error.message, "a wrong name"
    await steps(bystander, 2)
    assert node.health().ready, "control is unharmed"
