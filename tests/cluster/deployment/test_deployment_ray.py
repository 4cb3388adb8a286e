"""A cluster on a real Ray: its head and a worker on this machine, on loopback.

Real nodes with the shipped model, started by the commands as a user gives them. ``make test-ray``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.cluster.deployment.head import RayAccess
from quire.cluster.deployment.running import end_session, identify, read_stat

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: run 'make test-ray'"
    ),
]

OWN = """\
name: test
nodes:
  - name: node
    count: {count}
    port: {nodes}
    cpus: 0.5
    options: {{num-threads: 1, max-sequences: {sequences}, drain-timeout: 20}}
routers:
  count: 2
  port: {routers}
ray: {{port: {ray}}}
"""

ELASTIC = """\
name: test
nodes:
  - name: node
    port: {nodes}
    cpus: 0.5
    autoscale: {{max: {count}, requests: 1, up_after: 1, down_after: 5}}
    options: {{num-threads: 1, max-sequences: {sequences}, drain-timeout: 20}}
routers:
  port: {routers}
ray: {{port: {ray}}}
"""

SPREAD = """\
name: test
nodes:
  - name: node
    count: {count}
    port: {nodes}
    cpus: 0.5
    options: {{num-threads: 1, max-sequences: {sequences}, no-auth: true}}
routers:
  port: {routers}
  options: {{no-auth: true}}
ray: {{address: "{ray}", token_file: token}}
"""

CHAT = {"model": "quire-mini", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def free_ports(num: int) -> int:
    """The first of ``num`` ports in a row that nothing uses now, below those of clients."""
    for first in range(20_000 + os.getpid() % 5000, 32_000, num):
        if not any(_is_used(port) for port in range(first, first + num)):
            return first
    raise AssertionError("no free ports")


def _is_used(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == 0


@dataclass(slots=True)
class Cluster:
    """Commands are run as processes: each connects to Ray anew."""

    folder: Path
    first_port: int
    count: int = 2
    sequences: int = 16
    file: str = OWN
    ray: str = ""

    @property
    def state_dir(self) -> Path:
        return self.folder / "state" / "test"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.first_port + 10}"

    def quire(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        file = self.folder / "cluster.yaml"
        file.write_text(
            self.file.format(
                count=self.count,
                sequences=self.sequences,
                nodes=self.first_port,
                routers=self.first_port + 10,
                ray=self.ray or self.first_port + 20,
            )
        )
        return subprocess.run(
            [
                *(sys.executable, "-m", "quire.cli", command, str(file)),
                *("--state-dir", str(self.folder / "state"), *more),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def up(self) -> str:
        ran = self.quire("up")
        assert ran.returncode == 0, ran.stderr
        return ran.stderr

    def down(self) -> None:
        """End it; nothing of it is left."""
        pids = {one["pid"] for one in self.status().values()}
        ran = self.quire("down")
        assert ran.returncode == 0, ran.stderr
        assert pids
        assert not any(identify(pid) for pid in pids)
        assert not (self.folder / "state").exists()
        assert not _is_used(self.first_port + 20)

    def status(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.quire("status", "--json").stdout)
        return {one["name"]: one for one in found["processes"]}

    def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, Any]:
        """The first status for which ``holds``; the test's time limit bounds it."""
        while not holds(found := self.status()):
            time.sleep(0.5)
        return found

    def engines(self) -> set[str]:
        """What the first router itself says that it uses."""
        key = (self.state_dir / "admin.key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx.get(f"{self.url}/router/engines", headers=headers, timeout=60)
        return {one["name"] for one in answer.json()["engines"]}

    def chat(self) -> int:
        return httpx.post(f"{self.url}/v1/chat/completions", json=CHAT, timeout=60).status_code


def all_ready(found: dict[str, dict[str, Any]]) -> bool:
    return bool(found) and all(one["phase"] == "ready" and one["kept"] for one in found.values())


def uses(found: dict[str, dict[str, Any]], num_nodes: int) -> bool:
    """Whether there are so many nodes, and the first router knows just these."""
    nodes = {name for name in found if name.startswith("node-")}
    return len(nodes) == num_nodes and found["router-0"]["nodes"].keys() == nodes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Up, on a Ray of its own; at the end nothing of it is left."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), free_ports(200))
    try:
        made.up()
        yield made
        made.down()
    finally:
        made.quire("down")


@dataclass(slots=True)
class OtherRay:
    """A head and a worker that somebody else runs, on two addresses of loopback that stand for two
    machines."""

    folder: Path
    first_port: int
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, host: str, *options: str) -> subprocess.Popen[bytes]:
        first = self.first_port + 40 * len(self.running)
        ports = {
            "object-manager-port": first + 1,
            "node-manager-port": first + 2,
            "runtime-env-agent-port": first + 3,
            "min-worker-port": first + 10,
            "max-worker-port": first + 39,
        }
        token = self.folder / "token"
        token.write_text("0123456789abcdef" * 4)
        started = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options),
                *("--num-cpus=1", f"--object-store-memory={80 << 20}"),
                *("--include-log-monitor=false", f"--node-ip-address={host}"),
                *(f"--{name}={port}" for name, port in ports.items()),
            ],
            env=dict(os.environ) | RayAccess("", token, is_loopback=False).environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.running.append(started)
        while not _is_used(first + 2, host):
            assert started.poll() is None, "Ray has ended"
            time.sleep(0.2)
        return started

    def end(self) -> None:
        for started in self.running:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(60)
            end_session(started.pid, 0)
            started.wait()


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Cluster]:
    """Up, on a Ray of two machines that runs already."""
    temp_dir = tempfile.mkdtemp(prefix="qray-")  # sockets have short names
    ray = OtherRay(tmp_path, free_ports(200))
    made = Cluster(tmp_path, ray.first_port + 100, file=SPREAD)
    try:
        head = f"127.0.0.2:{ray.first_port}"
        first = f"--port={ray.first_port}"
        ray.start("127.0.0.2", "--head", first, "--no-monitor", f"--temp-dir={temp_dir}/1")
        ray.start("127.0.0.3", f"--address={head}", f"--temp-dir={temp_dir}/2")
        made.ray = head
        made.up()
        yield made
        made.down()
    finally:
        made.quire("down")
        ray.end()
        shutil.rmtree(temp_dir, ignore_errors=True)


@dataclass(slots=True)
class Load:
    """Chats one after another, until the block ends."""

    cluster: Cluster
    pause_s: float = 0.1
    statuses: list[int | str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def __enter__(self) -> Load:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.thread is not None
        self.stop.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.stop.wait(self.pause_s):
            try:
                self.statuses.append(self.cluster.chat())
            except httpx.HTTPError as exc:
                self.statuses.append(repr(exc))


def test_it_serves_and_up_again_does_nothing(cluster: Cluster) -> None:
    assert cluster.chat() == 200
    found = cluster.until(all_ready)
    assert sorted(found) == ["node-0", "node-1", "router-0", "router-1"]
    assert cluster.up() == ""
    assert cluster.quire("up", "--dry-run").stdout.endswith("says\n")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for one in found.values():
        assert os.getpriority(os.PRIO_PROCESS, one["pid"]) == own, one["name"]


def test_rays_ports_are_on_loopback_and_want_the_token(cluster: Cluster) -> None:
    ports = range(cluster.first_port + 20, cluster.first_port + 160)
    listening = [
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    ours = [one for one in listening if int(one.rpartition(":")[2], 16) in ports]
    assert ours
    assert all(one.rpartition(":")[0].endswith("0100007F") for one in ours), ours
    code = f"import ray; ray.init(address='127.0.0.1:{ports[0]}', logging_level='ERROR')"
    environment = dict(os.environ) | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "wrong" * 8,
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert "uth" in ran.stderr


def test_a_strategy_is_exchanged_under_load(cluster: Cluster) -> None:
    key = (cluster.state_dir / "admin.key").read_text().strip()
    with Load(cluster) as load:
        for name in ("data_parallel", "cache_aware", "least_used"):
            answer = httpx.put(
                f"{cluster.url}/router/strategy",
                json={"name": name},
                headers={"authorization": f"Bearer {key}"},
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
    assert set(load.statuses) <= {200}


@pytest.mark.parametrize("name", ["node-0", "router-1"])
def test_a_killed_process_is_started_again(cluster: Cluster, name: str) -> None:
    before = cluster.until(all_ready)[name]
    os.kill(before["pid"], signal.SIGKILL)
    after = cluster.until(
        lambda found: all_ready(found) and found[name]["restarts"] > before["restarts"]
    )[name]
    assert after["pid"] != before["pid"]
    assert cluster.chat() == 200


def test_a_killed_keeper_finds_its_process(cluster: Cluster) -> None:
    before = cluster.until(all_ready)["node-1"]
    os.kill(before["keeper_pid"], signal.SIGKILL)
    after = cluster.until(
        lambda found: all_ready(found) and found["node-1"]["keeper_pid"] != before["keeper_pid"]
    )["node-1"]
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])
    assert after["adopted"]


def test_nodes_are_replaced_and_added_under_load(cluster: Cluster) -> None:
    before = cluster.until(all_ready)
    cluster.count, cluster.sequences = 3, 8
    with Load(cluster) as load:
        told = cluster.up()
    steps = [line for line in told.splitlines() if not line.startswith(" ")]
    assert [step.partition(":")[0] for step in steps] == [
        *("start node-2", "replace node-0", "replace node-1"),
        *("tell router-0", "tell router-1"),
    ]
    after = cluster.until(all_ready)
    other = {name for name in before if after[name]["pid"] != before[name]["pid"]}
    assert other == {"node-0", "node-1"}
    assert set(load.statuses) == {200}
    os.kill(after["router-0"]["pid"], signal.SIGKILL)  # started again, it knows them all
    again = cluster.until(lambda found: all_ready(found) and found["router-0"]["restarts"] == 1)
    assert again["router-0"]["nodes"].keys() == {"node-0", "node-1", "node-2"}
    assert cluster.engines() == {"node-0", "node-1", "node-2"}


def test_without_rays_head_serving_goes_on_and_up_finds_it(cluster: Cluster) -> None:
    before = cluster.until(all_ready)
    head = int((cluster.state_dir / "ray" / "child").read_text().split()[0])
    os.kill(head, signal.SIGKILL)
    while read_stat(head) is not None:
        time.sleep(0.1)
    assert cluster.chat() == 200
    alone = cluster.until(lambda found: not any(one["kept"] for one in found.values()))
    assert {one["pid"] for one in alone.values()} == {one["pid"] for one in before.values()}
    told = cluster.up()
    assert "it runs, and nothing keeps it" in told
    after = cluster.until(all_ready)
    assert {name: one["pid"] for name, one in after.items()} == {
        name: one["pid"] for name, one in before.items()
    }
    assert cluster.chat() == 200


def test_nodes_follow_the_load(tmp_path: Path) -> None:
    elastic = Cluster(tmp_path, free_ports(200), file=ELASTIC)
    try:
        elastic.up()
        assert sorted(elastic.until(all_ready)) == ["node-0", "router-0"]
        with Load(elastic, pause_s=0.0) as one, Load(elastic, pause_s=0.0) as other:
            grown = elastic.until(lambda found: all_ready(found) and uses(found, 2))
        with Load(elastic, pause_s=2.0) as seldom:
            shrunk = elastic.until(lambda found: all_ready(found) and uses(found, 1))
        for name in ("node-0", "router-0"):
            assert shrunk[name]["pid"] == grown[name]["pid"]
        for load in (one, other, seldom):
            assert set(load.statuses) == {200}
        elastic.down()
    finally:
        elastic.quire("down")


def test_the_nodes_of_a_group_are_spread_over_machines(spread: Cluster) -> None:
    """One command, on a Ray of others: that goes on when the cluster is down."""
    found = spread.until(all_ready)
    machines = {name: one["machine"] for name, one in found.items()}
    assert {machines["node-0"], machines["node-1"]} == {"127.0.0.2", "127.0.0.3"}
    for name, one in found.items():
        assert one["url"].startswith(f"http://{machines[name]}:"), name
    answer = httpx.post(f"{found['router-0']['url']}/v1/chat/completions", json=CHAT, timeout=60)
    assert answer.status_code == 200
    assert found["router-0"]["nodes"] == {name: found[name]["url"] for name in ("node-0", "node-1")}
    os.kill(found["node-1"]["keeper_pid"], signal.SIGKILL)
    after = spread.until(
        lambda now: all_ready(now) and now["node-1"]["keeper_pid"] != found["node-1"]["keeper_pid"]
    )
    assert after["node-1"]["pid"] == found["node-1"]["pid"]
