"""The figures of a node as one frozen value; the server turns it into Prometheus text.

Knows no metric names and no exposition format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.control import EngineStatistics, ProcessRow, Statistics
from quire.core.ids import EngineId, ProgramForm, ProgramId
from quire.node.encoders.kept_rows import KeptRowsStatistics
from quire.node.latency import EngineLatencies
from quire.node.supervision.health import NodeHealth
from quire.node.tracing.classes import ClassFigures
from quire.node.tracing.sending import SpanCounts
from quire.programs.workflow.sharing import SharingStatistics
from quire.programs.workflow.speculation import SpeculationFigures


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """The figures at one moment.

    ``latencies`` has no entry for an engine that has served no decode yet. ``recording_failure``:
    why the event log has ended early, or ``None``. ``ended_programs``: their number by form and
    outcome. ``classes``: figures by class of program. ``kept_rows``: rows of encoders that are kept
    for programs. ``sharing``: the results of pure primitives that workflows share;
    ``speculation``: the primitives that ran ahead. ``spans``: None if they are sent nowhere.
    """

    health: NodeHealth
    controller: Statistics
    latencies: Mapping[EngineId, EngineLatencies]
    ended_programs: Mapping[tuple[ProgramForm, str], int]
    classes: Mapping[str, ClassFigures]
    num_programs_running: int
    num_sessions: int
    num_calls: int
    uptime_s: float
    kept_rows: KeptRowsStatistics
    sharing: SharingStatistics
    speculation: SpeculationFigures
    recording_failure: str | None = None
    spans: SpanCounts | None = None


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """The changes of the process table up to ``number``, and the present state of the engines; see
    ``quire.control.ProcessChanges``. ``unix_s``: the present Unix time. ``unix_offset_s`` is added
    to a row's time to give Unix time."""

    number: int
    records: Sequence[ProcessRecord]
    ended: Sequence[ProgramId]
    is_whole: bool
    more: bool
    engines: Sequence[EngineStatistics]
    policy: str
    health: NodeHealth
    uptime_s: float
    unix_s: float
    unix_offset_s: float


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One line of the process table. ``id``: the public id of a program or session."""

    id: str | None
    row: ProcessRow
