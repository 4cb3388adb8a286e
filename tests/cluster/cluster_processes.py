"""Nodes and a router as processes of this machine, with relays between them that can fail.

The nodes serve the shipped model in float32. What the router asks a node, and what a client asks
the router, passes a relay; so does what one engine sends another (``data``). A strategy in the
router divides each request that says so, and stops at points that a test has named.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

import httpx

from quire.testing import Relay

PATIENCE_S = 300.0
"""Bounds of waiting on a machine that is busy with other things; no measure of anything."""

ASK_S = 30.0
"""Bounds one question to a process that may be stopped, or not listening yet."""

_POLL_S = 0.1
MODEL = "quire-mini"
ROUND_HEADER = "x-fault-round"

POINTS = ("before_prep_recv", "after_prep_recv", "after_remote_send", "after_start_generate")
"""Where the strategy stops."""

_STRATEGY = '''
"""Divides requests of fault rounds between two engines, and stops between the calls."""

import asyncio

import msgspec

from quire.cluster.engines.overlapping import answered_while_sending
from quire.core.ids import TenantId
from quire.server.microserving.addresses import KvAddresses

KEYS = KvAddresses({key!r}, lambda: 0.0)
ROUND = {header!r}.encode()


async def at(point, *words):
    """Tell the test, and go on when it says so."""
    reader, writer = await asyncio.open_unix_connection({path!r})
    writer.write(" ".join((point, *words)).encode() + b"\\n")
    answer = (await reader.readline()).decode().strip()
    writer.close()
    return answer


async def route(request, engines):
    order = dict(request.headers).get(ROUND)
    receiver, *others = sorted(engines, key=lambda engine: (engine.load, engine.name))
    if order is None or not others or not request.is_divisible:
        return await receiver.send(request)
    receiver, sender = sorted(engines, key=lambda engine: engine.name)[:2]
    await at("before_prep_recv")
    prompt = await sender.prompt_tokens(request)
    received = await receiver.prep_recv(request, len(prompt) - 1, prompt=prompt)
    address = KEYS.open(received.kv_addr_info, TenantId("default"))
    relay = await at("after_prep_recv", address.data_address)
    if received.matched_len >= received.end:
        await at("after_remote_send")
        answer = await receiver.start_generate(request, received.end, received=received)
    else:
        there = msgspec.structs.replace(address, data_address=relay or address.data_address)
        there = msgspec.structs.replace(received, kv_addr_info=KEYS.seal(there))
        begin, end = received.matched_len, received.end

        async def sending():
            sent = await sender.remote_send(request, there, begin=begin, end=end, prompt=prompt)
            await at("after_remote_send")
            return sent

        answering = receiver.start_generate(request, received.end, received=received)
        answer = await answered_while_sending(
            sending(), answering, request.work, lambda sent: None
        )
    await at("after_start_generate")
    return answer
'''


@dataclass(frozen=True, slots=True)
class Levels:
    """What of a node must come back to nothing when nothing runs."""

    programs: int
    calls: int
    pending_commands: int
    leases: int
    transfers: int
    held_blocks: int


class QuireProcess:
    """``quire`` with ``arguments``: start it, kill it, start it again at the same port. It listens
    at ``host``; ``prefix`` comes before its command."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        directory: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.address = host, _free_port() if port is None else port
        self._arguments = arguments
        self._prefix = prefix
        self._process: Popen[bytes] | None = None
        self._last_said = "it was not asked"
        """What came of the last question whether it is ready."""

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        host, port = self.address
        command = [*self._prefix, sys.executable, "-m", "quire.cli", *self._arguments]
        command += ["--host", host, "--port", str(port), "--no-log-requests"]
        with self.log.open("ab") as log:
            self._process = Popen(
                command, stdin=DEVNULL, stdout=log, stderr=log,
                env=environment | {"QUIRE_COMPILED": "0"},
            )  # fmt: skip

    async def ready(self) -> None:
        """When it takes work. One question that is not answered is asked again."""
        async with httpx.AsyncClient(base_url=self.url, timeout=ASK_S, verify=False) as http:
            try:
                await until(lambda: self._is_ready(http), "")
            except TimeoutError as exc:
                raise AssertionError(
                    f"{self.name} is not ready after {PATIENCE_S:g} s, with a load of "
                    f"{os.getloadavg()[0]:.0f}: {self._last_said}; {self._tail()}"
                ) from exc

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        process = self._process
        assert process is not None
        assert process.poll() is None, f"{self.name} has ended: {self._tail()}"
        try:
            answer = await http.get("/ready")
        except httpx.TransportError as exc:
            self._last_said = repr(exc)
            return False
        self._last_said = f"/ready is {answer.status_code}: {answer.text[:500]}"
        return answer.status_code == 200

    def _tail(self) -> str:
        return self.log.read_text()[-2000:]

    def family(self) -> list[int]:
        """It and the processes that it has started."""
        assert self._process is not None
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    status = (entry / "stat").read_text()
                    parents[int(entry.name)] = int(status.rpartition(") ")[2].split()[1])
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send it to the whole family, as the loss of a machine would."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL, of this process alone: its children have to notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(60)
        except TimeoutExpired:
            self.signal(signal.SIGKILL)
            process.wait()
            raise

    async def figures(self) -> dict[str, int]:
        """Its metrics without labels, by name; of several with one name, the last."""
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, verify=False) as http:
            text = (await http.get("/metrics")).text
        return {
            line.split("{")[0].split(" ")[0]: int(float(line.rpartition(" ")[2]))
            for line in text.splitlines()
            if line.startswith("quire_")
        }

    async def levels(self) -> Levels:
        figures = await self.figures()
        held = figures["quire_kv_blocks"] - figures["quire_kv_blocks_free"]
        return Levels(
            programs=figures["quire_programs_running"],
            calls=figures["quire_calls"],
            pending_commands=figures["quire_pending_commands"],
            leases=figures["quire_leases"],
            transfers=figures["quire_transfers_in_flight"],
            held_blocks=held - figures["quire_kv_blocks_cached"],
        )

    async def settled(self) -> None:
        """When nothing is left of what has run; leases that nobody gives up expire."""
        nothing = Levels(0, 0, 0, 0, 0, 0)
        last = [nothing]

        async def is_settled() -> bool:
            last[0] = await self.levels()
            return last[0] == nothing

        try:
            await until(is_settled, "")
        except TimeoutError as exc:
            raise AssertionError(f"{self.name} still has {last[0]}") from exc


_NODE_READY = "quire_router_node_ready{"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass(eq=False)
class StopPoints:
    """Where the strategy waits for the test. ``target``: of the data relay that it is to use."""

    data: Relay
    path: Path
    reached: str = ""
    """The last point."""
    awaited: str | None = None
    has_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def stop_at(self, point: str | None) -> None:
        """Have the next request that comes to ``point`` wait there until ``go_on``."""
        self.awaited = point
        self.has_arrived.clear()
        self.may_go_on.clear()

    def go_on(self) -> None:
        self.awaited = None
        self.may_go_on.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            point, *words = (await reader.readline()).decode().split() or [""]
            if not point:  # the router was killed before it could say where it is
                raise ConnectionError
            self.reached = point
            answer = ""
            if words:
                host, _, port = words[0].removeprefix("tcp://").rpartition(":")
                self.data.target = (host, int(port))
                answer = "tcp://{}:{}".format(*self.data.address)
            if point == self.awaited:
                self.has_arrived.set()
                await self.may_go_on.wait()
            writer.write(answer.encode() + b"\n")
        writer.close()


@dataclass(eq=False)
class ClusterProcesses:
    """``links``: the router's to the nodes, by name; ``front``: the client's to the router."""

    nodes: dict[str, QuireProcess]
    router: QuireProcess
    links: dict[str, Relay]
    front: Relay
    data: Relay
    points: StopPoints

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.front.address)

    async def settled(self) -> None:
        await asyncio.gather(*(node.settled() for node in self.nodes.values()))

    async def ready(self) -> None:
        """When the router gives work to every node."""

        async def are_ready() -> bool:
            async with httpx.AsyncClient(timeout=PATIENCE_S, verify=False) as http:
                text = (await http.get(f"{self.router.url}/metrics")).text
            ready = [line for line in text.splitlines() if line.startswith(_NODE_READY)]
            return len(ready) == len(self.nodes) and all(line.endswith(" 1.0") for line in ready)

        await until(are_ready, "the router does not find every node ready")


@asynccontextmanager
async def cluster_processes(
    num_nodes: int,
    kv_cache_bytes: str = "8MiB",
    *,
    probe_interval_s: float = 0.2,
    probe_timeout_s: float = 1.0,
) -> AsyncIterator[ClusterProcesses]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key_file = directory / "cluster.key"
        key_file.touch(mode=0o600)
        key_file.write_text(key := secrets.token_hex(32))
        shared = ("--cluster-key-file", str(key_file))
        serve = ["serve", "--dtype", "float32", "--num-threads", "1", *shared]
        serve += ["--kv-cache-bytes", kv_cache_bytes, "--drain-timeout", "1"]
        names = [f"node-{number}" for number in range(num_nodes)]
        nodes = {name: QuireProcess(name, serve, directory) for name in names}
        data = await stack.enter_async_context(Relay(("127.0.0.1", 9)))
        points = StopPoints(data, directory / "points")
        hooks = await asyncio.start_unix_server(points.serve, points.path)
        await stack.enter_async_context(hooks)
        links = {
            name: await stack.enter_async_context(Relay(node.address))
            for name, node in nodes.items()
        }
        strategy = directory / "dividing.py"
        strategy.write_text(_STRATEGY.format(key=key, path=str(points.path), header=ROUND_HEADER))
        route = ["router", "--strategy", f"{strategy}:route", "--resume", *shared]
        route += ["--probe-interval", str(probe_interval_s)]
        route += ["--probe-timeout", str(probe_timeout_s), "--drain-timeout", "1"]
        for name, link in links.items():
            route += ["--node", "{}=http://{}:{}".format(name, *link.address)]
        router = QuireProcess("router", route, directory)
        for process in (*nodes.values(), router):
            stack.callback(process.stop)
        for node in nodes.values():
            node.start()
        await asyncio.gather(*(node.ready() for node in nodes.values()))
        router.start()
        await router.ready()
        front = await stack.enter_async_context(Relay(router.address))
        yield ClusterProcesses(nodes, router, links, front, data, points)


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Return when ``holds`` does."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await holds():  # noqa: ASYNC110 - other processes tell of no event
                await asyncio.sleep(_POLL_S)
    except TimeoutError as exc:
        raise TimeoutError(what) from exc
