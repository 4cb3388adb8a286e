"""MCP servers that the node runs: one process for all, and what happens when it misbehaves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from quire.core.errors import (
    ConfigError,
    InvalidArgument,
    ProgramError,
    ProgramTerminated,
    QuireError,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import TenantId
from quire.core.mcp_config import McpServerConfig
from quire.node.mcp import servers as servers_module
from quire.node.mcp.process import McpProcess
from quire.node.mcp.servers import START_WINDOW_S, McpServers
from quire.simulation.clock import VirtualClock

SERVER = Path(__file__).parent / "mcp_stdio_server.py"
ALICE, BOB = TenantId("alice"), TenantId("bob")

Make = Callable[..., McpServers]


def config(name: str = "tools", **settings: Any) -> McpServerConfig:
    return McpServerConfig(name, sys.executable, (str(SERVER),), **settings)


class Seen(McpProcess):
    """Remembers every process that was made."""

    made: list[Seen]

    def __init__(self, config: McpServerConfig) -> None:
        super().__init__(config, grace_s=0.2)
        self.made.append(self)

    @property
    def was_started(self) -> bool:
        return self._watch is not None


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    made: list[Seen] = []
    monkeypatch.setattr(Seen, "made", made, raising=False)
    return made


@pytest_asyncio.fixture
async def make(processes: list[Seen]) -> AsyncIterator[Make]:
    made: list[McpServers] = []

    def servers(*configs: McpServerConfig, clock: VirtualClock | None = None) -> McpServers:
        made.append(McpServers(configs or (config(),), clock or VirtualClock(), Seen))
        return made[-1]

    yield servers
    for one in made:
        await one.close()
    assert all(not process.was_started or process.ended.is_set() for process in processes)


async def call(
    servers: McpServers,
    tool: str,
    tenant: TenantId = ALICE,
    server: str = "tools",
    **arguments: Any,
) -> str:
    params = {"name": tool, "arguments": arguments}
    result = await servers.ask(server, tenant, "tools/call", params)
    return str(result["content"][0]["text"])


def limited(process: McpProcess, timeout_s: float) -> McpServerConfig:
    """The process answers in time from now on, or not at all; the configuration until now.

    Starting it takes what it takes, so the limit comes behind that.
    """
    before = process._config
    process._config = replace(before, timeout_s=timeout_s)
    return before


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_one_process_serves_everyone_from_the_first_call_on(
    make: Make, processes: list[Seen]
) -> None:
    servers = make()
    assert servers.pids() == {}
    pids = await asyncio.gather(*(call(servers, "pid", tenant) for tenant in (ALICE, BOB) * 3))
    assert set(pids) == {str(servers.pids()["tools"])}
    assert len(processes) == 1
    result = await servers.ask("tools", ALICE, "initialize", {})
    assert result["serverInfo"]["name"] == "scripted"
    await servers.close()
    assert not is_alive(int(pids[0]))
    with pytest.raises(ProgramTerminated, match="the node is stopping"):
        await call(servers, "pid")


async def test_answers_find_those_who_asked(make: Make) -> None:
    servers = make()
    texts = [str(number) for number in range(20)]
    assert await asyncio.gather(*(call(servers, "echo", text=text) for text in texts)) == texts


@pytest.mark.parametrize(("server", "tenant"), [("tools", BOB), ("none", ALICE)])
async def test_a_tenant_sees_its_servers_alone(make: Make, server: str, tenant: TenantId) -> None:
    servers = make(config(tenants=(ALICE,)), config("open"))
    has = "open" if tenant == BOB else "open, tools"
    with pytest.raises(UnknownHandle, match=f"for this tenant, which has {has}: "):
        await call(servers, "pid", tenant, server)
    assert servers.pids() == {}
    assert await call(servers, "pid", ALICE)


async def test_a_crash_is_told_to_those_who_wait_and_the_next_call_starts_another(
    make: Make, processes: list[Seen], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    servers = make()
    first = await call(servers, "pid")
    waiting = asyncio.create_task(call(servers, "silence", BOB))
    with pytest.raises(ProgramError, match=r"tools has ended \(it exited with 7\); the next call"):
        await call(servers, "crash")
    with pytest.raises(ProgramError, match="it exited with 7"):
        await waiting
    assert re.search(r"ended: it exited with 7\n .*about to crash", caplog.text, re.DOTALL)
    assert await call(servers, "pid") != first
    assert len(processes) == 2


async def test_one_that_crashes_again_and_again_is_left_alone_for_a_while(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "MAX_STARTS", 2)
    clock = VirtualClock()
    servers = make(clock=clock)
    for _ in range(2):
        with pytest.raises(ProgramError, match="exited with 7"):
            await call(servers, "crash")
    with pytest.raises(ProgramError, match="started 2 times within 60 s"):
        await call(servers, "pid")
    clock.advance(START_WINDOW_S + 1)
    assert await call(servers, "pid")


async def test_an_unused_one_is_ended_and_started_again(
    make: Make,
    processes: list[Seen],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(servers_module, "MAX_STARTS", 2)
    servers = make(config(idle_s=0.001))
    for _ in range(3):  # that is no crash
        await call(servers, "pid")
        await processes[-1].ended.wait()
    assert len({process.pid for process in processes}) == 3
    assert caplog.messages.count("ended: it was ended, unused") == 3


async def test_lines_of_log_without_end_take_no_others_turn() -> None:
    process, stderr, turns = McpProcess(config()), asyncio.StreamReader(), 0
    stderr.feed_data(b"line\n" * 1000)
    stderr.feed_eof()
    process._process = cast(Any, SimpleNamespace(stderr=stderr))

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    await process._read_log()
    other.cancel()
    assert turns >= 1000 // 64


async def test_one_that_nobody_waits_for_any_more_is_unused(
    make: Make, processes: list[Seen]
) -> None:
    servers = make(config(idle_s=0.001))
    waiting = asyncio.create_task(call(servers, "pid"))
    for _ in range(3):  # it starts
        await asyncio.sleep(0)
    waiting.cancel()
    await processes[0].ended.wait()
    assert servers.pids() == {}


async def test_a_call_under_way_keeps_it(make: Make, processes: list[Seen]) -> None:
    servers = make(config(idle_s=0.001))
    waiting = asyncio.create_task(call(servers, "silence"))
    for _ in range(3):
        await call(servers, "echo", text="a")
    assert not processes[0].ended.is_set()
    waiting.cancel()
    await processes[0].ended.wait()
    assert len(processes) == 1


async def test_an_answer_that_does_not_come_in_time(make: Make, processes: list[Seen]) -> None:
    servers = make()
    await call(servers, "pid")
    patient = limited(processes[0], timeout_s=0.2)
    with pytest.raises(ProgramError, match=r"tools has not answered tools/call within 0\.2 s"):
        await call(servers, "silence")
    processes[0]._config = patient
    await call(servers, "pid")  # the message about the other has left before this answer comes
    assert "notifications/cancelled" in json.loads(await call(servers, "notified"))


async def test_a_call_that_is_given_up_is_cancelled_at_the_server(make: Make) -> None:
    servers = make()
    first = await call(servers, "pid")
    waiting = asyncio.create_task(call(servers, "silence"))
    await call(servers, "pid")  # behind the other in the server's input
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await call(servers, "pid") == first
    heard = json.loads(await call(servers, "notified"))
    assert heard == ["notifications/initialized", "notifications/cancelled"]


async def test_messages_are_bounded_both_ways(make: Make) -> None:
    servers = make(config(max_message_bytes=4096))
    first = await call(servers, "pid")
    assert len(await call(servers, "size", num_bytes=3000)) == 3000
    with pytest.raises(InvalidArgument, match=r"has \d+ bytes, 4096 are allowed in one message"):
        await call(servers, "echo", text="x" * 5000)
    assert await call(servers, "pid") == first
    with pytest.raises(ProgramError, match="it sent a message of more than 4096 bytes"):
        await call(servers, "size", num_bytes=20_000)
    assert await call(servers, "pid") != first


async def test_a_tenant_that_floods_keeps_no_other_out(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "MAX_CALLS", 3)
    servers = make()
    flood = [asyncio.create_task(call(servers, "silence")) for _ in range(3)]
    await call(servers, "pid", BOB)
    with pytest.raises(QuotaExceeded, match="3 calls of this tenant are under way"):
        await call(servers, "pid", ALICE)
    assert await call(servers, "pid", BOB)
    for task in flood:
        task.cancel()
    await asyncio.wait(flood)
    assert await call(servers, "pid", ALICE)


async def test_what_is_no_message_goes_to_the_log(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    assert await call(make(), "prints") == "printed"
    assert "no message: this is no message" in caplog.text


async def test_others_have_their_turn_while_a_server_sends_without_end(
    make: Make, processes: list[Seen], caplog: pytest.LogCaptureFixture
) -> None:
    servers = make()
    assert await call(servers, "echo", text="x") == "x"
    (process,) = processes
    line, num_lines = b"x\n", 100_000
    stdout = process._process.stdout
    assert stdout is not None
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while stdout._buffer:  # type: ignore[attr-defined]
            turns += 1
            await asyncio.sleep(0)

    stdout.feed_data(line * num_lines)  # all of it is there at once
    await turn()
    assert turns > num_lines / 100
    invalid = [one for one in caplog.records if "no message" in one.getMessage()]
    assert len(invalid) == 21, "what is no message is shown twenty times"
    assert await call(servers, "echo", text="y") == "y"


async def test_a_server_may_ask_too(make: Make) -> None:
    assert json.loads(await call(make(), "asks")) == [["id", "result"], ["error", "id"]]


async def test_it_sees_little_of_the_nodes_environment(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "secret")
    servers = make(config(env={"OWN": "1"}, directory=tmp_path))
    seen = json.loads(await call(servers, "environment"))
    assert "QUIRE_API_KEY" not in seen
    assert (seen["OWN"], seen["PATH"]) == ("1", os.environ["PATH"])
    assert await call(servers, "directory") == str(tmp_path)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watching a process needs Linux")
async def test_what_it_has_started_ends_with_it(make: Make) -> None:
    servers = make()
    child = int(await call(servers, "leaves_a_child"))
    end, ended = os.pidfd_open(child), asyncio.Event()
    asyncio.get_running_loop().add_reader(end, ended.set)
    await servers.close()
    await ended.wait()
    asyncio.get_running_loop().remove_reader(end)
    os.close(end)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"command": "/no/such/file"}, r"cannot be started \(FileNotFoundError\)"),
        ({"args": ("-c", "raise SystemExit(3)")}, "it exited with 3"),
        ({"args": ("-c", "print('hello')")}, "it exited with 0"),
        ({"env": {"MCP_VERSION": "1999-01-01"}}, "speaks version '1999-01-01' of the protocol"),
        (
            {"args": ("-c", "import signal; signal.pause()"), "timeout_s": 0.1},
            "has not answered initialize within 0.1 s",
        ),
    ],
)
async def test_one_that_cannot_be_started(
    make: Make, settings: dict[str, Any], words: str, processes: list[Seen]
) -> None:
    given = {"command": sys.executable, "args": (str(SERVER),), **settings}
    servers = make(McpServerConfig("tools", **given))
    with pytest.raises(ProgramError, match=words):
        await call(servers, "pid")
    assert servers.pids() == {}
    with pytest.raises(ProgramError, match=words):  # the next call tries again
        await call(servers, "pid")


async def test_one_that_does_not_read_is_ended(make: Make, processes: list[Seen]) -> None:
    servers = make()
    stuck = [asyncio.create_task(call(servers, "silence", text="x" * 1000))]
    await call(servers, "pid")
    os.kill(servers.pids()["tools"], signal.SIGSTOP)  # its input fills up
    limited(processes[0], timeout_s=0.3)
    text = "x" * 1_000_000
    stuck += [asyncio.create_task(call(servers, "echo", text=text)) for _ in range(3)]
    results = await asyncio.gather(*stuck, return_exceptions=True)
    assert all(isinstance(result, ProgramError) for result in results)
    await processes[0].ended.wait()
    assert await call(servers, "echo", text="again") == "again"


async def test_what_is_asked_while_it_starts_ends_with_the_node(make: Make) -> None:
    servers = make(
        McpServerConfig("tools", sys.executable, ("-c", "import signal; signal.pause()"))
    )
    asking = asyncio.create_task(call(servers, "pid"))
    await asyncio.sleep(0)
    await servers.close()
    with pytest.raises((asyncio.CancelledError, QuireError)):
        await asking


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "a b"}, "a name has letters"),
        ({"command": ""}, "has no command"),
        ({"timeout_s": 0.0}, "must be positive"),
        ({"max_message_bytes": 10}, "at least 1024"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        McpServerConfig(**{"name": "tools", "command": "python", **settings})


async def test_what_a_server_prints_does_not_move_the_cursor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    code = (
        "import sys; print('\\x1b[2J\\tone\\u2028', flush=True); "
        "print('\\x1b]0;two\\x07', file=sys.stderr)"
    )
    process = McpProcess(McpServerConfig("loud", sys.executable, ("-c", code)), grace_s=0.2)
    with pytest.raises(ProgramError, match="has ended"):
        await process.start()
    await process.close()
    text = "".join(caplog.messages)
    assert "no message: \\x1b[2J\tone" in text
    assert text.count("\\x1b]0;two\\x07") == 2, "as it came, and behind the end"
    assert "\x1b" not in text
