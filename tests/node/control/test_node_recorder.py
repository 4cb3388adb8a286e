"""Recording a run and replaying it: equal, diverging, cut off, not a log, a full disk."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fake_node import TENANT, StartNode, fake_config, fake_model_files, fake_transport

from benchmarks.pie.dispatch_policies import Eager
from quire.control import Controller
from quire.core.calls import CloseQueue, Issue
from quire.core.commands import Decode
from quire.core.config import TenantConfig, TenantTotals
from quire.core.decoding import Processor, SamplerSpec, StopSpec
from quire.core.errors import ConfigError, InvalidArgument, ProtocolMismatch, QuotaExceeded
from quire.core.events import Called, EngineUp, Event, Tick
from quire.core.ids import CommandId, ProgramId, QueueId, TenantId
from quire.core.scheduler_config import SchedulerConfig
from quire.node import Node
from quire.node.control.recorder import EventRecorder, LogEntry, LogHeader, read_log
from quire.node.control.replaying import replay
from quire.programs.builtin import CompletionRequest, complete


async def record_some_work(start_node: StartNode, path: Path) -> None:
    tenants = (TenantConfig(TENANT), TenantConfig(TenantId("b"), api_keys=("secret",), weight=2.0))
    node = await start_node(
        fake_config(record_path=path, tenants=tenants, scheduler=SchedulerConfig("round_robin"))
    )
    await asyncio.gather(*(one_completion(node, f"s{n % 3}", n) for n in range(6)))
    cancelled = node.session(TENANT, "s").call(complete, request(300))
    await anext(aiter(cancelled))
    cancelled.cancel()
    await cancelled.wait_closed()
    await node.stop()


async def one_completion(node: Node, session: str, number: int) -> None:
    async for _ in node.session(TENANT, session).call(complete, request(5 + number)):
        pass


def request(max_tokens: int) -> CompletionRequest:
    return CompletionRequest(prompt=tuple(range(1, 12)), max_tokens=max_tokens, ignore_eos=True)


async def test_a_recorded_run_replays_equal(start_node: StartNode, tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    await record_some_work(start_node, path)
    report = replay(path)
    assert report.equal, report.divergence
    assert report.num_events > 20
    assert report.num_actions > 20


async def test_a_tenants_totals_are_recorded(start_node: StartNode, tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    totals = TenantTotals(max_queues=1)
    node = await start_node(
        fake_config(record_path=path, tenants=(TenantConfig(TENANT, totals=totals),))
    )
    session = node.session(TENANT, "s")
    long, refused = session.call(complete, request(300)), session.call(complete, request(5))
    await anext(aiter(long))
    with pytest.raises(QuotaExceeded, match="have max_queues raised in the tenant's totals"):
        async for _ in refused:
            pass
    long.cancel()
    await long.wait_closed()
    await node.stop()
    report = replay(path)
    assert report.equal, report.divergence


async def test_python_replays_what_any_form_of_control_recorded(
    start_node: StartNode, tmp_path: Path
) -> None:
    """With ``QUIRE_COMPILED=1`` the run is the compiled form's; the replay never is."""
    path = tmp_path / "events.log"
    await record_some_work(start_node, path)
    replaying = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire.cli", "replay", str(path)),
        env={**os.environ, "QUIRE_COMPILED": "0"},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await replaying.communicate()
    assert (replaying.returncode, said.splitlines()[-1]) == (0, b"the same actions throughout")


async def test_the_log_holds_no_keys_and_names_its_configuration(
    start_node: StartNode, tmp_path: Path
) -> None:
    path = tmp_path / "events.log"
    await record_some_work(start_node, path)
    assert b"secret" not in await asyncio.to_thread(path.read_bytes)
    header, first, *_ = read_log(path)
    assert isinstance(header, LogHeader)
    assert header.scheduler.policy == "round_robin"
    assert [(tenant.id, tenant.weight) for tenant in header.tenants] == [("default", 1.0), ("b", 2)]
    assert isinstance(first, LogEntry)
    assert isinstance(first.event, EngineUp)


async def test_the_first_divergence_is_named(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.log"
    await record_some_work(start_node, path)
    handle, seen = Controller.handle, []

    def drop_an_action(self: Controller, event: Event) -> list[object]:
        actions = handle(self, event)
        if actions:
            seen.append(event)
        return actions[1:] if len(seen) == 4 else actions  # type: ignore[return-value]

    monkeypatch.setattr(Controller, "handle", drop_an_action)
    found = replay(path).divergence
    assert found is not None
    assert found.event == repr(seen[3])
    assert found.index == replay_index(path, seen[3])


def replay_index(path: Path, event: Event) -> int:
    encoded = repr(event)
    events = [entry.event for entry in read_log(path) if isinstance(entry, LogEntry)]
    return [repr(one) for one in events].index(encoded)


async def test_what_the_controller_raised_is_in_the_log_and_is_raised_again(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, handle = tmp_path / "events.log", Controller.handle

    def break_on_cancel(self: Controller, event: Event) -> object:
        if isinstance(event, Called) and isinstance(event.call, CloseQueue):
            raise AssertionError("a bug of ours")
        return handle(self, event)

    with monkeypatch.context() as broken:
        broken.setattr(Controller, "handle", break_on_cancel)
        node = await start_node(fake_config(record_path=path))
        await one_completion(node, "s", 1)
        await node.wait_health(lambda health: not health.alive)
        assert "a bug of ours" in node.health().detail
        await node.stop()
        report = replay(path)
        assert report.equal
        assert report.failure == "AssertionError: a bug of ours"
    divergence = replay(path).divergence  # mended: it answers where it had raised
    assert divergence is not None
    assert "CloseQueue" in divergence.event


async def test_a_log_that_was_cut_off_replays_to_its_last_whole_event(
    start_node: StartNode, tmp_path: Path
) -> None:
    path = tmp_path / "events.log"
    await record_some_work(start_node, path)
    whole = await asyncio.to_thread(path.read_bytes)
    num_events = replay(path).num_events
    for num_bytes in (1, 3, 5, 40):
        await asyncio.to_thread(path.write_bytes, whole[:-num_bytes])
        report = replay(path)
        assert report.equal
        assert report.num_events == num_events - 1


@pytest.mark.parametrize("content", [b"", b"\x01\x00\x00\x00", b"PK\x03\x04" * 100, b"\xff" * 64])
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "not.log"
    path.write_bytes(content)
    with pytest.raises((InvalidArgument, ProtocolMismatch)):
        replay(path)


def test_a_missing_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"missing\.log"):
        replay(tmp_path / "missing.log")


async def test_a_log_that_cannot_be_written_keeps_the_node_from_starting(
    start_node: StartNode, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        await start_node(fake_config(record_path=tmp_path / "no" / "such" / "dir" / "log"))


async def test_a_log_is_closed_when_the_stores_keep_the_node_from_starting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = fake_config(record_path=tmp_path / "log", data_dir=tmp_path / "file" / "stores")
    node = Node(config, transport_factory=fake_transport, model_files=fake_model_files)
    with pytest.raises(ConfigError):
        await node.start()
    recorder = node._life._recorder
    assert recorder is not None
    assert recorder._file.closed


async def test_a_full_disk_ends_the_recording_not_the_node(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(fake_config(record_path=tmp_path / "log"))
    recorder = node._life._recorder
    assert recorder is not None
    recorder._file.close()
    recorder._file = FullDisk()  # type: ignore[assignment]
    await one_completion(node, "s", 1)
    assert "No space left" in str(node.statistics().recording_failure)
    await one_completion(node, "s", 2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_what_a_full_disk_keeps_from_being_written_at_the_end_is_told(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path / "events.log", fake_config())
    recorder._file.close()
    recorder._file = Path("/dev/full").open("wb")  # noqa: SIM115 - the recorder closes it
    recorder.observe(Tick(time_s=0.0), [])  # it stands in the buffer alone
    recorder.close()
    assert recorder.failure is not None
    assert "No space left" in recorder.failure


def test_an_event_that_cannot_be_written_ends_the_recording_alone(tmp_path: Path) -> None:
    """A trusted program hands over objects: its tokens may be numpy's, which control can read."""
    recorder = EventRecorder(tmp_path / "events.log", fake_config())
    recorder.observe(Tick(time_s=np.float32(1.0)), [])  # type: ignore[arg-type]
    recorder.observe(Tick(time_s=2.0), [])
    recorder.close()
    assert recorder.failure is not None
    assert "float32" in recorder.failure


def test_an_event_that_is_nested_without_end_ends_the_recording_alone(tmp_path: Path) -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    sampler = SamplerSpec((Processor("bad_words", {"tokens": nested}),))  # type: ignore[dict-item]
    decode = Decode(
        id=CommandId(1), context=[], output=[], tokens=[1], position=0, sampler=sampler,
        stop=StopSpec(max_tokens=1),
    )  # fmt: skip
    recorder = EventRecorder(tmp_path / "events.log", fake_config())
    issue = Issue(QueueId(1), [decode])
    recorder.observe(Called(time_s=1.0, program=ProgramId(1), call=issue), [])
    recorder.close()
    assert recorder.failure is not None
    assert "recursion" in recorder.failure


class FullDisk:
    def write(self, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def test_the_digest_depends_on_all_that_came_before(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path / "log", fake_config())
    assert msgspec.structs.fields(LogEntry)[1].name == "digest"
    chain = recorder._chain
    assert chain.extend([]) != chain.extend([])
    recorder.close()


def test_a_dispatch_policy_that_the_log_cannot_hold_is_refused(tmp_path: Path) -> None:
    config = fake_config(record_path=tmp_path / "events.log")
    with pytest.raises(ConfigError, match="does not hold the dispatch policy 'eager'"):
        Node(config, transport_factory=fake_transport, dispatch=Eager())
