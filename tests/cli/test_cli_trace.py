"""``quire trace``: the file of a given trace, of an event log, and of a real node's program."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli_invoke import invoke

from quire.cli.client import NodeClient
from quire.cli.perfetto import in_tree_order, trace_file
from quire.control import Controller
from quire.core import commands as c
from quire.core.calls import CreateQueue
from quire.core.config import EngineConfig, NodeConfig
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.events import Event, ProgramEnded, ProgramStarted
from quire.core.ids import CommandId, EngineId, ModelId, PageId, ProgramId, QueueId, TenantId
from quire.node.control.recorder import EventRecorder
from quire.server.schemas.traces import (
    ProgramTrace,
    TraceCall,
    TracedProgram,
    TraceMessage,
    TraceTransfer,
    TraceWait,
)
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.engine import StepTime
from quire.testing.harness import ControlHarness

Capture = pytest.CaptureFixture[str]
ENGINE = EngineId("fake")


def call(command: int, arrival: float, end: float | None, **fields: Any) -> TraceCall:
    known: dict[str, Any] = {
        "kind": "decode",
        "model": "m",
        "engine": "m#0",
        "thread": 0,
        "sent": arrival,
        "first_token": None,
        "waiting_s": 0.0,
        "service_s": 1.0,
        "num_prefilled_tokens": 3,
        "num_cached_tokens": 0,
        "num_generated_tokens": 2,
        "num_preemptions": 0,
        "messages": [],
        "outcome": None if end is None else "done",
        "error": None,
    }
    return TraceCall(command=command, arrival=arrival, end=end, **(known | fields))


def program(process: int, parent: int | None = None, **fields: Any) -> TracedProgram:
    known: dict[str, Any] = {
        "id": f"prog-{process}",
        "form": "inferlet",
        "name": f"p{process}",
        "client_id": None,
        "tenant": "t",
        "start": 100.0,
        "end": 110.0,
        "reason": "finished",
        "num_calls": 0,
        "calls": [],
        "waits": [],
        "transfers": [],
    }
    return TracedProgram(process=process, parent=parent, **(known | fields))


def message(number: int, start: float, end: float) -> TraceMessage:
    return TraceMessage(
        engine="m#0", number=number, sent=start, start=start, end=end, num_commands=1, num_tokens=4
    )


def file_of(*programs: TracedProgram, messages: tuple[TraceMessage, ...] = ()) -> dict[str, Any]:
    trace = ProgramTrace(
        object="program.trace", time=120.0, programs=list(programs), messages=list(messages)
    )
    return checked(trace_file(trace))


def checked(file: dict[str, Any]) -> dict[str, Any]:
    """``file``, which keeps the rules of the trace event format: complete and metadata events
    alone, with the fields of each; on one track nothing overlaps; every track has a name."""
    file = json.loads(json.dumps(file))
    assert set(file) == {"displayTimeUnit", "traceEvents", "otherData"}
    assert file["displayTimeUnit"] in ("ms", "ns")
    named = set()
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in file["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            kinds = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            assert event["name"] in kinds
            named |= {(event["pid"], event["tid"])} if event["name"] == "thread_name" else set()
        else:
            assert event["ph"] == "X", "a complete event"
            assert event["name"]
            assert min(event["ts"], event["dur"]) >= 0.0
            span = (event["ts"], event["ts"] + event["dur"])
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    assert set(tracks) == named
    for spans in tracks.values():
        ordered = sorted(spans)
        for (_, end), (start, _) in pairwise(ordered):
            assert end <= start + 1e-3, "two slices of one track overlap"
    return file


def slices(file: dict[str, Any], category: str) -> list[tuple[str, float, float]]:
    return [
        (event["name"], event["ts"] / 1e6, event["dur"] / 1e6)
        for event in file["traceEvents"]
        if event["ph"] == "X" and event["cat"] == category
    ]


def track_names(file: dict[str, Any]) -> list[str]:
    return [
        event["args"]["name"] for event in file["traceEvents"] if event["name"] == "thread_name"
    ]


def test_what_a_program_did_is_on_tracks_of_its_own() -> None:
    error = {"code": "engine_lost", "message": "gone"}
    one = program(
        1,
        calls=[
            call(1, 100.0, 101.0, messages=[(4, 5)]),
            call(2, 103.0, 104.0, outcome="failed", error=error),
            call(3, 105.0, 106.0, outcome="cancelled"),
            call(4, 107.0, None),
        ],
        waits=[TraceWait(start=101.0, end=103.0)],
        transfers=[
            TraceTransfer(
                engine="m#0", direction="out", start=101.5, end=102.0, num_blocks=3, num_bytes=99,
                lost=False,
            )
        ],
    )  # fmt: skip
    carried = (message(4, 100.0, 100.5), message(5, 100.5, 101.0), message(9, 103.0, 103.5))
    file = file_of(one, messages=carried)
    assert slices(file, "program") == [("p1", 0.0, 10.0)]
    assert slices(file, "calls") == [
        ("decode", 0.0, 1.0),
        ("decode (engine_lost)", 3.0, 1.0),
        ("decode (cancelled)", 5.0, 1.0),
        ("decode (under way)", 7.0, 13.0),
    ]
    assert slices(file, "waits") == [("wait", 1.0, 2.0)]
    assert slices(file, "transfers") == [("swap out", 1.5, 0.5)]
    mine = [name for name, _, _ in slices(file, "messages") if name.startswith("m#0")]
    assert mine == ["m#0 4", "m#0 5"], "those that carried its calls, and not number 9"
    engines = [name for name, _, _ in slices(file, "messages") if name.startswith("message")]
    assert engines == ["message 4", "message 5", "message 9"]
    assert file["otherData"]["start_unix_s"] == "100.0"


def test_calls_that_overlap_are_laid_on_several_tracks() -> None:
    calls = [call(1, 100.0, 103.0), call(2, 101.0, 102.0), call(3, 103.0, 104.0)]
    file = file_of(program(1, calls=calls))
    assert track_names(file) == ["program", "calls", "calls 2"]
    assert len(slices(file, "calls")) == 3


def test_a_family_is_shown_as_a_tree() -> None:
    family = [program(1), program(3), program(2, 1), program(4, 2), program(5, 77)]
    ordered = [(one.process, depth) for one, depth in in_tree_order(family)]
    assert ordered == [(1, 0), (2, 1), (4, 2), (3, 0), (5, 0)]
    file = file_of(*family)
    titles = [
        event["args"]["name"] for event in file["traceEvents"] if event["name"] == "process_name"
    ]
    assert titles[:3] == [
        "inferlet p1 (prog-1)",
        "  inferlet p2 (prog-2)",
        "    inferlet p4 (prog-4)",
    ]


# -- a log -----------------------------------------------------------------------------------------


class Recorded:
    """A controller whose events go to a log too."""

    def __init__(self, path: Path, *, truthful: bool = True) -> None:
        config = NodeConfig((EngineConfig(source="x", name=ModelId("fake")),))
        self._recorder = EventRecorder(path, config)
        self._controller = Controller(config.scheduler, config.tenants)
        self._truthful = truthful

    def handle(self, event: Event) -> Any:
        actions = self._controller.handle(event)
        self._recorder.observe(event, actions if self._truthful else [*actions, *actions])
        return actions

    def check_invariants(self) -> None:
        self._controller.check_invariants()

    def close(self) -> None:
        self._recorder.close()


def record(path: Path, *, truthful: bool = True) -> None:
    """Two programs, the second the first one's child, with a decode each; one has a wait."""
    recorded = Recorded(path, truthful=truthful)
    engine = FakeEngine(fake_pool(), step_time=StepTime(base_s=1.0, per_token_s=0.0))
    harness = ControlHarness(recorded, {ENGINE: engine})
    for number, parent in ((1, None), (2, ProgramId(1))):
        started = ProgramStarted(
            time_s=harness.now_s, program=ProgramId(number), tenant=TenantId("default"),
            form="inferlet", name=f"p{number}", parent=parent,
        )  # fmt: skip
        harness.post(started)
        harness.call(ProgramId(number), CreateQueue(QueueId(1), ModelId("fake")))
        _decode(harness, number, 1)
        harness.run_until_idle()
    harness.clock.advance(5.0)
    _decode(harness, 1, 10)
    harness.run_until_idle()
    harness.post(ProgramEnded(time_s=harness.now_s, program=ProgramId(2)))
    recorded.close()


def _decode(harness: ControlHarness, program: int, first: int) -> None:
    pages = [PageId(first + number) for number in range(4)]
    harness.issue(
        ProgramId(program),
        QueueId(1),
        c.AllocPages(id=CommandId(first), pages=pages),
        c.Decode(
            id=CommandId(first + 1), context=pages, output=pages, tokens=[7, 8], position=0,
            sampler=SamplerSpec(), stop=StopSpec(max_tokens=2),
        ),
    )  # fmt: skip


def test_a_log_gives_the_same_trace_without_a_node(capsys: Capture, tmp_path: Path) -> None:
    record(tmp_path / "events.log")
    target = tmp_path / "trace.json"
    ran = invoke(capsys, "trace", "--log", str(tmp_path / "events.log"), "-o", str(target))
    assert (ran.code, "2 programs, 3 calls" in ran.err) == (0, True), ran.err
    file = checked(json.loads(target.read_text()))
    assert [name for name, _, _ in slices(file, "program")] == ["p1", "p2"]
    assert [name for name, _, _ in slices(file, "calls")] == ["decode"] * 3
    first = slices(file, "waits")[0]
    assert first[2] > 5.0, "between the first program's calls"


def test_one_program_of_a_log_alone(capsys: Capture, tmp_path: Path) -> None:
    log = str(tmp_path / "events.log")
    record(tmp_path / "events.log")
    ran = invoke(capsys, "trace", "p1", "--log", log, "--alone")
    file = checked(json.loads(ran.out))
    assert [name for name, _, _ in slices(file, "program")] == ["p1"]
    ran = invoke(capsys, "trace", "1", "--log", log)
    assert [name for name, _, _ in slices(checked(json.loads(ran.out)), "program")] == ["p1", "p2"]
    ran = invoke(capsys, "trace", "p9", "--log", log)
    assert ran.code == 2
    assert "1 (p1), 2 (p2)" in ran.err


def test_a_log_that_diverges_is_traced_up_to_there(capsys: Capture, tmp_path: Path) -> None:
    record(tmp_path / "events.log", truthful=False)
    ran = invoke(capsys, "trace", "p1", "--log", str(tmp_path / "events.log"))
    assert (ran.code, "the trace ends at event 3" in ran.err) == (0, True)
    [(_, _, lasted_s)] = slices(checked(json.loads(ran.out)), "program")
    assert lasted_s == 0.0, "its first message was to be sent then"


def test_what_cannot_be_traced_is_refused_with_a_remedy(capsys: Capture, tmp_path: Path) -> None:
    ran = invoke(capsys, "trace")
    assert (ran.code, "--log" in ran.err) == (2, True)
    ran = invoke(capsys, "trace", "x", "--url", "http://127.0.0.1:9")
    assert ran.code != 0
    assert "quire serve" in ran.err
    record(tmp_path / "events.log")
    nowhere = tmp_path / "missing" / "trace.json"
    ran = invoke(capsys, "trace", "--log", str(tmp_path / "events.log"), "-o", str(nowhere))
    assert (ran.code, "cannot be written" in ran.err) == (2, True)


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_program_of_a_real_node(capsys: Capture, shipped_server: str) -> None:
    request = {"program": "text_completion", "args": ["Hello,", "2"], "wait": True}
    with NodeClient(shipped_server) as node:
        launched = node.launch(request)
    ran = invoke(capsys, "trace", launched["id"], "--url", shipped_server)
    assert ran.code == 0, ran.err
    file = checked(json.loads(ran.out))
    [(name, _, _)] = slices(file, "program")
    assert name == launched["name"]
    assert slices(file, "calls")
    assert "messages" in track_names(file)
