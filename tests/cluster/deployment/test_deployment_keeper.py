"""The keeper of a process: real processes, no Ray."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_processes import BROKEN, SLEEPS, STUBBORN, QuickClock, eventually, keeper, spec, until

from quire.cluster.deployment.child import running_child, start_child
from quire.cluster.deployment.folder import (
    ProcessFolder,
    StartRecord,
    process_folder,
    process_folders,
)
from quire.cluster.deployment.hosting import readiness_of
from quire.cluster.deployment.keeper import Keeper, Readiness
from quire.cluster.deployment.ports import is_taken
from quire.cluster.deployment.process import ProcessSpec
from quire.cluster.deployment.running import ProcessIdentity, identify, is_running
from quire.cluster.deployment.spawning import spawn
from quire.cluster.deployment.sweeping import end_unkept, sweep_machine, unkept_states
from quire.core.errors import EngineLost


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    end_unkept(tmp_path / "cluster")


@contextlib.asynccontextmanager
async def keeping(kept: Keeper) -> AsyncIterator[asyncio.Task[None]]:
    """Ended as a keeper is that is killed: its process goes on."""
    task = asyncio.create_task(kept.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_why_a_process_takes_no_work_is_told(state_dir: Path) -> None:
    why = "engine m#0 is loading: loading weights"
    kept, _ = keeper(spec(), state_dir, is_ready=lambda: why == "", why_not=lambda: why)
    async with keeping(kept):
        assert (await until(kept, lambda state: state.detail != "")).detail == why
        why = "engine m#0 is failed: it has stalled"
        assert (await until(kept, lambda state: state.detail == why)).phase == "starting"
        why = ""
        assert (await until(kept, lambda state: state.phase == "ready")).detail == ""


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"detail": "2 of 2 nodes take work"}', Readiness(is_ready=True)),
        (503, b'{"detail": "engine m#0 is failed"}', Readiness(False, "engine m#0 is failed")),
        (503, b"{}", Readiness(False, "/ready answers 503")),
        (502, b"Bad Gateway", Readiness(False, "/ready answers 502")),
        (503, b'["detail"]', Readiness(False, "/ready answers 503")),
    ],
)
def test_what_ready_answers_is_read(status: int, body: bytes, expected: Readiness) -> None:
    assert readiness_of(httpx.Response(status, content=body)) == expected


async def test_it_starts_a_process_and_says_when_it_is_ready(state_dir: Path) -> None:
    ready = False
    kept, folder = keeper(spec(keys={"cluster.key": "secret"}), state_dir, is_ready=lambda: ready)
    async with keeping(kept):
        started = await until(kept, lambda state: state.pid is not None)
        assert (started.phase, started.restarts, started.adopted) == ("starting", 0, False)
        child = running_child(folder)
        assert child is not None
        assert child.pid == started.pid
        assert os.getpgid(child.pid) != os.getpgid(0)
        ready = True
        assert (await until(kept, lambda state: state.phase == "ready")).url == (
            "http://127.0.0.1:8101"
        )
        ready = False
        await until(kept, lambda state: state.phase == "unready")
    assert is_running(child)  # its keeper is gone
    key = folder.path / "cluster.key"
    assert key.read_text() == "secret\n"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (key, folder.log)}
    assert modes == {0o600}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


async def test_one_that_ends_is_started_again_behind_longer_and_longer_pauses(
    state_dir: Path,
) -> None:
    clock = QuickClock()
    kept, _ = keeper(spec(arguments=(BROKEN,)), state_dir, is_ready=lambda: False, clock=clock)
    async with keeping(kept):
        state = await until(kept, lambda state: state.restarts >= 3 and state.phase == "waiting")
    assert state.said[-1] == "no such model"
    assert "started again in" in state.detail
    pauses = [seconds for seconds in clock.slept if seconds > 0.5]
    assert pauses[:2] == [1.0, 2.0]


def on_a_full_disk(times: int, call: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
    """``call``, but so many times there is no room for it."""
    left = [None] * times

    def called(*args: Any) -> Any:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return call(*args)

    return called


async def test_a_full_disk_delays_a_start(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = on_a_full_disk(2, start_child)
    monkeypatch.setattr("quire.cluster.deployment.keeper.start_child", full)
    kept, _ = keeper(spec(), state_dir)
    async with keeping(kept):
        state = await until(kept, lambda state: state.phase == "waiting")
        assert "No space left on device; it is started again in" in state.detail
        assert (await until(kept, lambda state: state.phase == "ready")).restarts == 2


async def test_a_full_disk_ends_neither_a_process_nor_its_keeper(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = keeper(spec(), state_dir)
    async with keeping(kept):
        before = await until(kept, lambda state: state.phase == "ready")
        monkeypatch.setattr(ProcessFolder, "bound_log", on_a_full_disk(2))
        state = await until(kept, lambda state: "No space left" in state.detail)
        assert (state.phase, state.pid) == ("ready", before.pid)
        state = await until(kept, lambda state: not state.detail)
        assert (state.phase, state.pid, state.restarts) == ("ready", before.pid, 0)


async def test_a_process_can_be_ended_while_the_disk_is_full(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = keeper(spec(), state_dir)
    async with keeping(kept) as task:
        await until(kept, lambda state: state.phase == "ready")
        monkeypatch.setattr(ProcessFolder, "leave", on_a_full_disk(1))
        with pytest.raises(OSError, match="No space left"):
            kept.request_stop()
        await task
    assert kept.state.phase == "stopped"


async def test_one_that_nobody_could_find_is_ended_at_once(tmp_path: Path) -> None:
    """The disk is full just when its identity is written; it would keep its port for ever."""
    seconds = f"1000.{os.getpid()}"
    with pytest.raises(EngineLost, match="its disk is full"):
        spawn(
            ["/bin/sh", "-c", f"exec sleep {seconds}"],
            log=tmp_path / "log",
            file=tmp_path / "none" / "child",
            directory=tmp_path,
            environment=os.environ,
        )
    await eventually(lambda: not _runs(seconds.encode()))


def _runs(argument: bytes) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument in path.read_bytes():
                return True
    return False


async def test_a_killed_one_is_started_again_and_what_it_left_is_ended(state_dir: Path) -> None:
    kept, folder = keeper(spec(arguments=("sleep 1000 & sleep 1000",)), state_dir)
    async with keeping(kept):
        first = (await until(kept, lambda state: state.phase == "ready")).pid
        assert first is not None
        left = _children(first)
        assert left
        os.kill(first, signal.SIGKILL)
        state = await until(kept, lambda state: state.restarts == 1 and state.phase == "ready")
        assert state.pid != first
        assert not any(map(is_running, left))
        assert running_child(folder) is not None


def _children(pid: int) -> list[ProcessIdentity]:
    while True:  # the shell may not have started them yet
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        found = [identify(int(one)) for one in text.split()]
        if len(found) == 2:
            return [one for one in found if one is not None]


async def test_a_keeper_that_comes_back_adopts_the_process(state_dir: Path) -> None:
    former, _ = keeper(spec(), state_dir)
    async with keeping(former):
        pid = (await until(former, lambda state: state.phase == "ready")).pid
    later, _ = keeper(spec(), state_dir)
    async with keeping(later):
        state = await until(later, lambda state: state.phase == "ready")
        assert (state.pid, state.adopted, state.restarts) == (pid, True, 0)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # it is nobody's child, and its end is seen all the same
        state = await until(later, lambda state: state.restarts == 1 and state.phase == "ready")
        assert not state.adopted
    third, _ = keeper(spec(), state_dir)
    async with keeping(third):
        assert (await until(third, lambda state: state.phase == "ready")).restarts == 1


def router(*nodes: str) -> ProcessSpec:
    return spec("router-0", nodes={name: f"http://{name}" for name in nodes})


async def test_a_router_with_other_nodes_goes_on_and_is_told(state_dir: Path) -> None:
    former, folder = keeper(router("a"), state_dir)
    async with keeping(former):
        before = await until(former, lambda state: state.phase == "ready")
    told: list[tuple[str, ProcessSpec]] = []
    refusals = ["not now"]

    def tell(url: str, wanted: ProcessSpec) -> str:
        told.append((url, wanted))
        return refusals.pop() if refusals else ""

    later, _ = keeper(router("a", "b"), state_dir, tell=tell)
    async with keeping(later):
        await until(later, lambda state: state.detail == "its nodes are to change: not now")
        assert later.state.nodes == {"a": "http://a"}
        after = await until(later, lambda state: state.nodes.keys() == {"a", "b"})
        await until(later, lambda state: not state.detail)
        assert (after.pid, after.adopted) == (before.pid, True)
        assert told == [(before.url, router("a", "b"))] * 2
    record = folder.record()
    assert record is not None
    assert record.spec.nodes.keys() == {"a", "b"}
    third, _ = keeper(router("a", "b"), state_dir, tell=tell)
    async with keeping(third):  # it knows, and asks nothing
        state = await until(third, lambda state: state.phase == "ready")
        assert (state.pid, state.nodes.keys()) == (before.pid, {"a", "b"})
    assert len(told) == 2


async def test_a_router_that_is_started_again_has_the_nodes_of_now(state_dir: Path) -> None:
    former, _ = keeper(router("a"), state_dir)
    async with keeping(former):
        await until(former, lambda state: state.phase == "ready")
    commands: list[list[str]] = []
    later, _ = keeper(router("b"), state_dir, commands=commands)
    async with keeping(later):
        pid = (await until(later, lambda state: state.nodes.keys() == {"b"})).pid
        assert pid is not None
        assert not commands
        os.kill(pid, signal.SIGKILL)
        state = await until(later, lambda state: state.restarts == 1 and state.phase == "ready")
        assert state.nodes.keys() == {"b"}
    assert ["--node=b=http://b" in command for command in commands] == [True]


async def test_a_keeper_with_another_spec_drains_what_runs_first(state_dir: Path) -> None:
    former, folder = keeper(spec(), state_dir)
    async with keeping(former):
        await until(former, lambda state: state.phase == "ready")
    child = running_child(folder)
    assert child is not None
    changed = spec(environment={"SIZE": "large"})
    later, _ = keeper(changed, state_dir)
    async with keeping(later):
        state = await until(later, lambda state: state.phase == "ready")
    assert not is_running(child)
    assert (state.digest, state.adopted) == (changed.digest, False)
    record = folder.record()
    assert record is not None
    assert record.spec == changed


async def test_two_keepers_of_a_process_never_have_it_both(state_dir: Path) -> None:
    first, _ = keeper(spec(), state_dir)
    second, folder = keeper(spec(), state_dir)
    async with keeping(first):
        pid = (await until(first, lambda state: state.phase == "ready")).pid
        async with keeping(second):
            await until(second, lambda state: state.detail == "another keeper has it")
            assert second.state.pid is None
            with folder.locked() as is_free:
                assert not is_free
    assert pid is not None
    async with keeping(second):
        assert (await until(second, lambda state: state.phase == "ready")).pid == pid


async def test_it_ends_the_process_on_request(state_dir: Path) -> None:
    kept, folder = keeper(spec(), state_dir)
    async with keeping(kept) as task:
        await until(kept, lambda state: state.phase == "ready")
        child = running_child(folder)
        kept.request_stop()
        await task
    assert child is not None
    assert not is_running(child)
    assert (kept.state.phase, kept.state.pid) == ("stopped", None)
    kept.remove_files()
    assert process_folders(state_dir) == []


async def test_one_that_does_not_drain_is_killed(state_dir: Path) -> None:
    stubborn = spec(arguments=(STUBBORN,), drain_s=0.0)
    kept, folder = keeper(stubborn, state_dir, kill_margin_s=0.05)
    async with keeping(kept) as task:
        await until(kept, lambda state: state.phase == "ready")
        child = running_child(folder)
        kept.request_stop()
        await task
    assert child is not None
    assert not is_running(child)


async def test_a_keeper_that_comes_back_goes_on_ending(state_dir: Path) -> None:
    """Ray starts an actor again under its old order; a new order begins anew."""
    kept, folder = keeper(spec(), state_dir, assignment="first")
    async with keeping(kept):
        await until(kept, lambda state: state.phase == "ready")
        kept.request_stop()
    again, _ = keeper(spec(), state_dir, assignment="first")
    async with keeping(again) as task:
        await task
    assert again.state.phase == "stopped"
    assert running_child(folder) is None
    new, _ = keeper(spec(), state_dir, assignment="second")
    async with keeping(new):
        await until(new, lambda state: state.phase == "ready")


async def test_a_process_keeps_the_devices_that_it_was_given(state_dir: Path) -> None:
    """Ray may give a keeper that comes back other ones, which another process has."""
    shows = spec(arguments=(f"echo on $CUDA_VISIBLE_DEVICES; {SLEEPS}",), gpus=1.0)
    for given in ("3", "5"):
        environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": given}
        kept, folder = keeper(shows, state_dir, environment=environment)
        async with keeping(kept):
            await until(kept, lambda state: state.phase == "ready")
            child = running_child(folder)
            await eventually(lambda folder=folder: bool(folder.said()))
            assert folder.said() == ("on 3",)
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        await eventually(lambda child=child: not is_running(child))


async def test_a_machine_without_the_files_folder_is_named(state_dir: Path) -> None:
    kept, _ = keeper(spec(directory="/no/such/folder"), state_dir)
    async with keeping(kept):
        state = await until(kept, lambda state: state.phase == "waiting")
    assert "/no/such/folder" in state.detail


async def test_another_process_at_its_port_is_not_taken_for_it(state_dir: Path) -> None:
    """It would answer that it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        kept, folder = keeper(spec(port=port), state_dir, is_taken=is_taken)
        async with keeping(kept):
            state = await until(kept, lambda state: state.phase == "waiting")
            assert f"something else listens at http://127.0.0.1:{port}" in state.detail
            assert folder.record() is None
            other.close()
            await until(kept, lambda state: state.phase == "ready")


async def test_what_nobody_keeps_is_seen_and_ended_and_nothing_else(state_dir: Path) -> None:
    kept, _ = keeper(spec("node-0"), state_dir)
    left, _ = keeper(spec("node-1", port=8102), state_dir)
    async with keeping(left):
        await until(left, lambda state: state.phase == "ready")
    async with keeping(kept):
        await until(kept, lambda state: state.phase == "ready")
        found = await asyncio.to_thread(unkept_states, state_dir, ["node-0"])
        assert [(state.name, state.kept) for state in found.values()] == [("node-1", False)]
        assert await asyncio.to_thread(end_unkept, state_dir) == ["node-1"]
        assert [folder.name for folder in process_folders(state_dir)] == ["node-0"]
        assert running_child(process_folder(state_dir, "node-0")) is not None


def test_of_a_machine_that_is_swept_nothing_is_left(tmp_path: Path) -> None:
    first, other = (tmp_path / machine / "quire" / "small" for machine in ("first", "other"))
    for state_dir in (first, other):
        process_folder(state_dir, "node-0").make()
    (first / "admin.key").touch()
    assert sweep_machine(first) == sweep_machine(other) == []
    assert [path.name for path in first.iterdir()] == ["admin.key"]
    assert list((tmp_path / "other").iterdir()) == []
    assert sweep_machine(other) == []


async def test_an_id_that_another_process_has_now_is_left_alone(state_dir: Path) -> None:
    kept, folder = keeper(spec(), state_dir)
    async with keeping(kept):
        await until(kept, lambda state: state.phase == "ready")
    child = running_child(folder)
    assert child is not None
    fields = folder.child_file.read_text().split()
    fields[21] = str(child.start_ticks - 1)  # as if the id had been given to another one
    true = folder.child_file.read_text()
    folder.child_file.write_text(" ".join(fields))
    assert running_child(folder) is None
    assert unkept_states(state_dir, ()) == {}
    folder.child_file.write_text(true)
    assert running_child(folder) == child


async def test_a_long_log_is_cut(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.deployment.folder.MAX_LOG_BYTES", 100)
    kept, folder = keeper(spec(arguments=(f"printf '%0200d\\n' 7; {SLEEPS}",)), state_dir)
    async with keeping(kept):
        await until(kept, lambda state: state.phase == "ready")
        old = folder.path / "log.1"
        await eventually(lambda: old.exists() and folder.log.stat().st_size == 0)
    assert old.stat().st_size == 201


def test_what_is_said_after_a_log_was_cut_is_told(state_dir: Path) -> None:
    """The process began far behind the end that its log has now."""
    folder = process_folder(state_dir, "node-0")
    folder.make()
    folder.log.write_text("before\n" * 100)
    record = StartRecord(
        spec=spec(), url="http://127.0.0.1:1", boot_id="", started_unix_s=0.0, log_start=700
    )
    folder.write_record(record)
    assert folder.said() == ()
    folder.log.write_text("ready\n")
    assert folder.said() == ("ready",)
