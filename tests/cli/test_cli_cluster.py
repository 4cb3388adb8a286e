"""``quire up``, ``status`` and ``down``, as far as they go without Ray.

With Ray: tests/cluster/deployment/test_deployment_ray.py.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from cli_invoke import Ran, invoke

from quire.cli.cluster import _detail
from quire.cli.cluster_options import cluster_commands
from quire.cluster.deployment.expansion import Expansion, KeyFileContents, make_keys, make_state_dir
from quire.cluster.deployment.folder import process_folder
from quire.cluster.deployment.keeper import Keeper, Readiness
from quire.cluster.deployment.process import ProcessSpec, ProcessState
from quire.cluster.deployment.reading import read_cluster
from quire.cluster.deployment.running import identify
from quire.cluster.deployment.sweeping import end_unkept
from quire.core.system_clock import SystemClock

Capture = pytest.CaptureFixture[str]

ROOT = Path(__file__).parents[2]
LOCAL = ROOT / "examples" / "cluster" / "local.yaml"


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    end_unkept(tmp_path / "state" / "local")


def run(capsys: Capture, base: Path, command: str, *more: str) -> Ran:
    return invoke(capsys, command, str(LOCAL), "--state-dir", str(base), *more)


def leave_running(state_dir: Path) -> int:
    """A small process in the place of node-0, whose keeper has gone; its id."""
    cluster = read_cluster(LOCAL, cluster_commands())
    make_state_dir(state_dir)
    wanted = Expansion(cluster, state_dir, make_keys(cluster, state_dir)).nodes()[0]

    async def start() -> int:
        async def probe(url: str) -> Readiness:
            return Readiness(is_ready=True)

        async def tell(url: str, spec: ProcessSpec) -> str:
            return ""

        kept = Keeper(
            wanted,
            process_folder(state_dir, wanted.name),
            "first",
            host="127.0.0.1",
            machine="here",
            environment=os.environ,
            probe=probe,
            tell=tell,
            clock=SystemClock(),
            is_taken=lambda host, port: False,
            command_of=lambda spec, host, keys_in: ["/bin/sleep", "1000"],
        )
        task = asyncio.create_task(kept.run())
        while kept.state.phase != "ready":  # noqa: ASYNC110 - nothing here is told of it
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert kept.state.pid is not None
        return kept.state.pid

    return asyncio.run(start())


def test_a_dry_run_shows_the_steps_and_leaves_nothing(capsys: Capture, base: Path) -> None:
    ran = run(capsys, base, "up", "--dry-run")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "1. start node-0: it does not run",
        "1. start node-1: it does not run",
        "2. start router-0: it does not run",
    ]
    assert not base.exists()


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("nosuch", "no strategy 'nosuch' is shipped"),
        ("mine.py:route", "SyntaxError: '(' was never closed"),
        ("mine.py:other", "SyntaxError"),
        ("missing.py", "'missing.py' cannot be read"),
        ("{strategy: cache_aware, strategy_options: {max_extr: 1}}", "takes the options"),
    ],
)
def test_a_strategy_that_routers_would_refuse_is_refused_before(
    capsys: Capture, tmp_path: Path, strategy: str, told: str
) -> None:
    """A router that is replaced by one that cannot start serves nobody."""
    (tmp_path / "mine.py").write_text("async def route(request, engines")
    given = strategy[1:-1] if strategy.startswith("{") else f"strategy: {strategy}"
    file = tmp_path / "cluster.yaml"
    file.write_text(f"name: x\nnodes: [{{port: 8101}}]\nrouters: {{port: 8100, {given}}}\n")
    ran = invoke(capsys, "up", str(file), "--dry-run", "--state-dir", str(tmp_path / "state"))
    assert ran.code == 2
    assert "routers.strategy: " in ran.err
    assert told in ran.err


def test_a_strategy_that_this_machine_cannot_try_is_left_to_the_routers(
    capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    given = "strategy: missing.py, environment: {PYTHONPATH: /mine}"
    file.write_text(f"name: x\nnodes: [{{port: 8101}}]\nrouters: {{port: 8100, {given}}}\n")
    ran = invoke(capsys, "up", str(file), "--dry-run", "--state-dir", str(tmp_path / "state"))
    assert ran.code == 0, ran.err


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_up_names_the_extra(capsys: Capture, base: Path) -> None:
    ran = run(capsys, base, "up")
    assert ran.code == 2
    assert "pip install 'quire[ray]'" in ran.err
    assert not base.exists()


def test_what_goes_on_without_ray_is_shown_and_ended(capsys: Capture, base: Path) -> None:
    pid = leave_running(base / "local")
    planned = run(capsys, base, "up", "--dry-run")
    assert "start node-0: it runs, and nothing keeps it" in planned.out
    shown = run(capsys, base, "status")
    assert shown.code == 1
    assert "nothing keeps it" in shown.out
    assert "Ray is not running: 'quire up' starts it" in shown.out
    ran = run(capsys, base, "status", "--json")
    (process,) = json.loads(ran.out)["processes"]
    assert (process["name"], process["pid"], process["kept"]) == ("node-0", pid, False)
    assert run(capsys, base, "status").out.splitlines()[-1].endswith("processes go on meanwhile")
    ended = run(capsys, base, "down")
    assert ended.code == 0, ended.err
    assert "node-0 ended, which nothing had kept" in ended.err
    assert ended.out == "local is down\n"
    assert identify(pid) is None
    assert not base.exists()


def test_what_has_ended_without_ray_is_shown_and_removed(capsys: Capture, base: Path) -> None:
    pid = leave_running(base / "local")
    os.kill(pid, signal.SIGKILL)
    while identify(pid) is not None:
        time.sleep(0.005)
    ran = run(capsys, base, "status", "--json")
    assert ran.code == 1
    (process,) = json.loads(ran.out)["processes"]
    assert (process["name"], process["phase"], process["pid"]) == ("node-0", "stopped", None)
    assert process["detail"] == "it has ended, and nothing keeps it"
    (base / "local" / "processes" / "node-0" / "log").write_text("loading\nno such model\n")
    shown = run(capsys, base, "status").out
    assert shown.endswith("Ray is not running: 'quire up' starts it\n")
    assert "it last said: no such model" in " ".join(shown.split())
    assert "start node-0: it does not run" in run(capsys, base, "up", "--dry-run").out
    assert run(capsys, base, "down").out == "local is down\n"
    assert not base.exists()


def test_what_was_ended_on_request_has_no_last_words() -> None:
    state = ProcessState(
        name="node-0", group="node", kind="node", digest="", phase="stopped", url="", said=("bye",)
    )
    assert _detail(state) == ""
    waits = msgspec.structs.replace(state, phase="waiting", detail="it ended by itself")
    assert _detail(waits) == "it ended by itself; it last said: bye"


def test_down_of_what_is_not_up_says_so(capsys: Capture, base: Path) -> None:
    assert run(capsys, base, "down").out == "local is down\n"


def test_a_second_command_waits_for_the_first(capsys: Capture, base: Path) -> None:
    make_state_dir(base / "local")
    with (base / "local" / "command.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ran = run(capsys, base, "down")
    assert ran.code == 2
    assert "another 'quire up' or 'quire down' of local runs" in ran.err


def test_watch_and_json_exclude_each_other(capsys: Capture, base: Path) -> None:
    assert run(capsys, base, "status", "--watch", "--json").code == 2


def test_every_option_of_both_commands_can_be_written() -> None:
    """Those of the commands, but for what the cluster decides."""
    commands = cluster_commands()
    assert {"max-sequences", "sandbox", "policy"} <= set(commands.serve.kinds)
    assert commands.serve.kinds["log-requests"] == "flag"
    assert commands.serve.kinds["adapter"] == "values"
    assert commands.serve.negative["sandbox"] == "no-sandbox"
    for command in (commands.serve, commands.router):
        assert set(command.decided) <= set(command.kinds)
        assert "help" not in command.kinds


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("max-sequences: 0", "greater than or equal to 1"),
        ("num-threads: many", "valid integer"),
        ("policy: fastest", "'fcfs'"),
        ("host: 0.0.0.0", "the cluster decides it"),
        ("api-key: secret", "write api-keys-file"),
    ],
)
def test_the_commands_own_checks_hold(
    capsys: Capture, tmp_path: Path, option: str, reason: str
) -> None:
    file = tmp_path / "cluster.yaml"
    lines = LOCAL.read_text("utf-8").splitlines()
    there = [line for line in lines if "num-threads" not in line and "max-sequences" not in line]
    place = next(n for n, line in enumerate(there) if line.startswith("    options:"))
    file.write_text("\n".join([*there[: place + 1], f"      {option}", *there[place + 1 :]]))
    ran = invoke(capsys, "up", str(file), "--dry-run", "--state-dir", str(tmp_path / "state"))
    assert ran.code == 2
    assert "nodes[0].options" in ran.err
    assert reason in ran.err


def test_the_command_of_a_process_is_understood() -> None:
    cluster = read_cluster(LOCAL, cluster_commands())
    expansion = Expansion(cluster, Path("/state"), KeyFileContents("c", "a"))
    node = expansion.nodes()[1].command("127.0.0.1", "/keys")
    router = expansion.routers({"node-0": "http://127.0.0.1:8101"})[0].command("h", "/keys")
    assert node[:4] == [sys.executable, "-m", "quire.cli", "serve"]
    assert "--port=8102" in node
    assert "--cluster-key-file=/keys/cluster.key" in node
    assert "--data-host=127.0.0.1" in node
    assert node[-2:] == ["--", "quire-mini"]
    assert router[:4] == [sys.executable, "-m", "quire.cli", "router"]
    assert "--admin-key-file=/keys/admin.key" in router
    assert "--node=node-0=http://127.0.0.1:8101" in router
