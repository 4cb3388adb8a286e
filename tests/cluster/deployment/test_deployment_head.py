"""Ray's head and a cluster around it, where a small process listens in Ray's place."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pretended_keepers import PretendedKeepers, Told

from quire.cluster.deployment import deployment as deployment_module
from quire.cluster.deployment import head as head_module
from quire.cluster.deployment.deployment import Deployment
from quire.cluster.deployment.expansion import Expansion, make_state_dir
from quire.cluster.deployment.head import RayHead
from quire.cluster.deployment.options import CommandOptions
from quire.cluster.deployment.ray_cluster import RayCluster
from quire.cluster.deployment.reading import Commands, read_cluster
from quire.cluster.deployment.scaling import ScalingState
from quire.cluster.deployment.spec import NUM_HEAD_PORTS, OwnHead
from quire.core.errors import EngineLost, PoolExhausted

LISTENS = """
import socket, sys, threading
for port in map(int, sys.argv[1:]):
    globals()[f"s{port}"] = socket.create_server(("127.0.0.1", port))
threading.Event().wait()
"""


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_ports() -> int:
    """The first of three ports in a row that nobody uses."""
    firsts = range(21000, 60000, NUM_HEAD_PORTS)
    return next(first for first in firsts if all(map(is_free, range(first, first + 3))))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The head of Ray is a process that listens on its ports, if these are not used."""

    def command(self: RayHead, temp_dir: str) -> list[str]:
        first = self._spec.port
        ports = [str(first), str(first + head_module._NODE_MANAGER)]
        return [sys.executable, "-c", LISTENS, *ports]

    monkeypatch.setattr(RayHead, "_command", command)
    return free_ports()


@pytest.fixture
def head(tmp_path: Path, port: int) -> Iterator[RayHead]:
    made = RayHead(tmp_path, OwnHead(port=port), {})
    yield made
    made.stop()


def test_a_head_is_started_once_and_ends_with_all_that_it_has(head: RayHead) -> None:
    assert not head.is_running()
    head.start()
    assert head.is_running()
    record = head._record()
    assert record is not None
    assert head.access.address == record.address
    token, folder = head.access.token_file, Path(record.temp_dir)
    assert token is not None
    key = token.read_text()
    assert len(key) == 64
    assert token.stat().st_mode & 0o077 == 0
    head.start()
    assert head._record() == record, "it runs already"
    head.stop()
    assert not head.is_running()
    assert not folder.exists()
    head.stop()
    head.start()
    assert token.read_text() == key, "keepers that live on know the token of before"
    again = head._record()
    assert again is not None
    shutil.rmtree(again.temp_dir)  # somebody else has cleaned up
    head.stop()
    assert not head.is_running()


def test_one_that_cannot_start_is_told_with_what_it_has_said(head: RayHead, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        with pytest.raises(EngineLost, match=r"did not start on the ports(.|\n)*already in use"):
            head.start()
    assert not head.is_running()
    assert head._record() is None


def test_the_ray_of_another_cluster_is_not_taken_for_its_own(
    head: RayHead, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "_FREE_TIMEOUT_S", 0.0)
    other = head_module._NODE_MANAGER + port
    with (
        socket.create_server(("127.0.0.1", port)),
        socket.create_server(("127.0.0.1", other)),
        pytest.raises(EngineLost, match=f"something listens on the port {port}, .* ray.port"),
    ):
        head.start()
    assert head._record() is None


COMMANDS = Commands(
    CommandOptions("serve", {"no-auth": "flag"}, {}, lambda _: None),
    CommandOptions("router", {"no-auth": "flag"}, {}, lambda _: None),
)


def deployment(tmp_path: Path, ray: str, more: str = "") -> Deployment:
    file = tmp_path / "cluster.yaml"
    open_to_all = "options: {no-auth: true}"
    file.write_text(
        f"name: small\nray: {ray}\nnodes:\n  - {{port: 8101, {more}{open_to_all}}}\n"
        f"routers: {{port: 8000, {open_to_all}}}\n"
    )
    state_dir = tmp_path / "state"
    make_state_dir(state_dir)
    return Deployment(read_cluster(file, COMMANDS), state_dir, {})


def unreachable(self: Deployment) -> RayCluster:
    raise EngineLost("Ray does not answer")


def test_without_its_head_a_cluster_says_so_and_can_be_removed(tmp_path: Path, port: int) -> None:
    made = deployment(tmp_path, f"{{port: {port}}}")
    assert "is not running: 'quire up' starts it" in made.status().ray
    assert made.down(Told()) == []
    assert not (tmp_path / "state").exists()
    assert made.down(Told()) == []


def test_a_cluster_whose_head_does_not_answer_is_ended_with_it(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deployment, "_connected", unreachable)
    made = deployment(tmp_path, f"{{port: {port}}}")
    head = RayHead(tmp_path / "state", OwnHead(port=port), {})
    head.start()
    assert made.status().ray == "Ray does not answer"
    told = Told()
    assert made.down(told) == []
    assert told.changes == ["stop Ray"]
    assert not head.is_running()


def test_a_cluster_on_anothers_ray_is_not_ended_while_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keepers on other machines would start its processes again."""
    monkeypatch.setattr(Deployment, "_connected", unreachable)
    made = deployment(tmp_path, "{address: 10.0.0.1:6379}")
    with pytest.raises(EngineLost, match="Ray does not answer"):
        made.down(Told())
    assert (tmp_path / "state").exists()


class ScaledKeepers(PretendedKeepers):
    """Those of a cluster whose autoscaler is a name in ``done``."""

    def __enter__(self) -> ScaledKeepers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stop_scaling(self) -> None:
        self.done.append("stop scaling")

    def start_scaling(self, expansion: Expansion) -> None:
        self.done.append("start scaling")

    def scaling(self) -> ScalingState | None:
        return ScalingState() if self.done[-1:] == ["start scaling"] else None


def test_a_failed_change_of_a_scaled_cluster_says_that_nothing_scales_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keepers = ScaledKeepers(num_places=1)
    monkeypatch.setattr(Deployment, "_connected", lambda _: keepers)
    monkeypatch.setattr(deployment_module, "require_ray", lambda: None)
    monkeypatch.setattr("quire.cluster.deployment.rollout._INTERVAL_S", 0.0)
    monkeypatch.setattr("quire.cluster.deployment.report.node_loads", lambda *_: {})
    made = deployment(tmp_path, "{address: 10.0.0.1:6379}", "autoscale: {max: 2}, ")
    told = Told()
    with pytest.raises(PoolExhausted):
        made.up(told)
    assert "keep their number of nodes until 'quire up' has succeeded" in told.changes[-1]
    assert made.status().ray == "runs, but no autoscaler answers: if that lasts, run 'quire up'"
    keepers.num_places = 2
    assert made.up(Told()).ray == "runs"
    assert keepers.done[-1] == "start scaling"
    assert made.status().ray == "runs"
