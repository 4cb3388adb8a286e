"""``quire up`` on a Ray of two machines: a cable is pulled, then Ray's head is lost, and serving
goes on.

Runs where network namespaces can be made (root: ``.ci/run``) and Ray is installed:
``make test-ray``. The machines have one file system and one table of processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from network_namespaces import Machine, Refused, machines

from quire.cluster.deployment.head import RayAccess
from quire.cluster.deployment.running import end_session
from quire.cluster.deployment.sweeping import end_unkept

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: run 'make test-ray'"
    ),
]

RAY_PORT, NODE_PORT, ROUTER_PORT = 6400, 8101, 8201
FILE = f"""\
name: far
nodes:
  - name: node
    count: 2
    port: {NODE_PORT}
    cpus: 0.5
    options: {{num-threads: 1, drain-timeout: 5, no-auth: true}}
routers:
  count: 2
  port: {ROUTER_PORT}
  strategy: data_parallel
  options: {{no-auth: true, resume: true}}
ray: {{address: "{{head}}:{RAY_PORT}", token_file: token}}
"""
CHAT = {"model": "quire-mini", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
NUM_CHATS = 6


@dataclass
class Cluster:
    """Ray and Quire on ``places``; Quire's commands run on the first of them, beside the head."""

    folder: Path
    places: Sequence[Machine]
    rays: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def access(self) -> RayAccess:
        token = self.folder / "token"
        return RayAccess(f"{self.places[0].address}:{RAY_PORT}", token, is_loopback=False)

    def start_ray(self, place: Machine, *options: str) -> None:
        """With the ports that a firewall would open."""
        ports = {
            "object-manager-port": RAY_PORT + 1,
            "node-manager-port": RAY_PORT + 2,
            "runtime-env-agent-port": RAY_PORT + 3,
            "min-worker-port": RAY_PORT + 10,
            "max-worker-port": RAY_PORT + 39,
        }
        with (self.folder / f"ray-{place.name}.log").open("wb") as log:
            started = subprocess.Popen(
                [
                    *(*place.prefix, sys.executable, "-m", "ray.scripts.scripts", "start"),
                    *("--block", "--num-cpus=1", f"--object-store-memory={80 << 20}"),
                    *("--include-log-monitor=false", f"--node-ip-address={place.address}"),
                    *(f"--{name}={port}" for name, port in ports.items()),
                    *(f"--temp-dir={self.folder / place.name[-2:]}", *options),
                ],
                env=dict(os.environ) | self.access.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.rays.append(started)
        self.until(lambda: self.hears(place) or started.poll() is not None)
        assert started.poll() is None, "Ray has ended"

    def hears(self, place: Machine) -> bool:
        """Whether Ray's node on ``place`` takes connections from another machine."""
        command = [*place.prefix, "bash", "-c", f"</dev/tcp/{place.address}/{RAY_PORT + 2}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def quire(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        file = self.folder / "cluster.yaml"
        file.write_text(FILE.replace("{head}", self.places[0].address))
        state_dir = ("--state-dir", str(self.folder / "state"))
        return subprocess.run(
            [
                *(*self.places[0].prefix, sys.executable, "-m", "quire.cli", command, str(file)),
                *(*state_dir, *more),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    def status(self) -> dict[str, dict[str, Any]]:
        ran = self.quire("status", "--json")
        return {one["name"]: one for one in json.loads(ran.stdout)["processes"]}

    def until(self, holds: Callable[[], bool]) -> None:
        """The test's time limit bounds it."""
        while not holds():
            time.sleep(0.5)

    def chats(self, url: str) -> set[str]:
        """The nodes that have answered; all have."""
        answers = [
            httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=120)
            for _ in range(NUM_CHATS)
        ]
        assert {one.status_code for one in answers} == {200}
        return {one.headers["x-quire-node"] for one in answers}

    def lose_head(self) -> None:
        """SIGKILL to all of Ray on its machine, keepers included, and to nothing else; without it
        Ray's other node ends by itself, after a minute."""
        head, other = self.rays
        end_session(head.pid, 0)
        head.wait()
        self.until(lambda: other.poll() is not None)

    def end(self) -> None:
        self.quire("down")
        end_unkept(self.folder / "state" / "far")
        for started in reversed(self.rays):
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(60)
            end_session(started.pid, 0)
            started.wait()


@contextmanager
def cluster(places: Sequence[Machine]) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="qns-"))  # sockets have short names
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "token").write_text("0123456789abcdef" * 4)
        made = Cluster(folder, places)
        stack.callback(made.end)
        head, worker = places
        made.start_ray(head, "--head", f"--port={RAY_PORT}", "--no-monitor")
        made.start_ray(worker, f"--address={made.access.address}")
        ran = made.quire("up")
        assert ran.returncode == 0, ran.stderr
        yield made


def test_a_cable_and_rays_head_are_lost_and_serving_goes_on() -> None:
    try:
        with machines(2) as places, cluster(places) as c:
            _lost(c)
    except Refused as exc:
        pytest.skip(f"no network namespaces here: {exc}")


def _lost(c: Cluster) -> None:
    here, there = c.places
    found = c.status()
    homes = {name: one["machine"] for name, one in found.items()}
    assert {homes["node-0"], homes["node-1"]} == {here.address, there.address}
    near = next(name for name, home in homes.items() if home == here.address and "node" in name)
    url = next(
        one["url"]
        for name, one in found.items()
        if name.startswith("router") and one["machine"] == here.address
    )
    assert c.chats(url) == {"node-0", "node-1"}

    there.pull()  # nobody is told
    assert near in c.chats(url)
    assert c.chats(url) == {near}, "the router has noticed"
    there.plug()
    c.until(lambda: c.chats(url) == {"node-0", "node-1"})

    pids = {name: one["pid"] for name, one in found.items()}
    c.lose_head()  # and with it all of Ray
    assert c.chats(url) == {"node-0", "node-1"}
    for name, pid in pids.items():
        assert Path(f"/proc/{pid}").exists(), f"{name} has ended with Ray"
