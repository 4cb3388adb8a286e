"""Reports of a running node: its health, process table, changes and figures.

Owns how the figures of the parts are joined into one answer. It only reads, and must not know the
form in which an answer is sent. Belongs to the edge's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.control import ProcessRow
from quire.core.ids import ProgramId, TenantId
from quire.node.life import NodeLife
from quire.node.metrics import NodeChanges, NodeStatistics, ProcessRecord
from quire.node.notices import NodeNotices
from quire.node.parts import NodeParts
from quire.node.supervision.health import NodeHealth, node_health


class NodeReports:
    """Reports of the node with these ``parts``, scheduled by ``policy``; see the methods of
    ``Node`` with the same names."""

    def __init__(self, parts: NodeParts, life: NodeLife, notices: NodeNotices, policy: str) -> None:
        self._parts = parts
        self._life = life
        self._notices = notices
        self._policy = policy

    def health(self) -> NodeHealth:
        failure = self._parts.control.failure
        return node_health(
            {**self._parts.fleet.health(), **self._parts.encoders.health()},
            self._parts.sandbox.health(),
            draining=self._parts.admission.draining,
            failure=None if failure is None else failure.message,
        )

    async def wait_health(self, accept: Callable[[NodeHealth], bool]) -> NodeHealth:
        while not accept(health := self.health()):
            await self._notices.wait_health_change()
        return health

    def processes(self, tenant: TenantId | None) -> list[ProcessRecord]:
        rows = self._parts.control.call(lambda controller: controller.processes(tenant))
        return self._records(rows)

    def process(self, program: ProgramId) -> ProcessRecord | None:
        row = self._parts.control.call(lambda controller: controller.process(program))
        return None if row is None else ProcessRecord(self.public_id(program), row)

    def changes(self, since: int, tenant: TenantId | None) -> NodeChanges:
        changes, engines = self._parts.control.call(
            lambda controller: (controller.changes(since, tenant), controller.engine_statistics())
        )
        clock = self._parts.clock
        unix_s = clock.unix_s()
        return NodeChanges(
            number=changes.number,
            records=self._records(changes.rows),
            ended=changes.ended,
            is_whole=changes.is_whole,
            more=changes.more,
            engines=engines,
            policy=self._policy,
            health=self.health(),
            uptime_s=self._life.uptime_s,
            unix_s=unix_s,
            unix_offset_s=unix_s - clock.now_s(),
        )

    def statistics(self) -> NodeStatistics:
        parts = self._parts
        controller, latencies, ended, classes = parts.control.call(
            lambda controller: (
                controller.statistics(),
                parts.latencies.snapshot(),
                parts.figures.ended(),
                parts.classes.snapshot(),
            )
        )
        return NodeStatistics(
            health=self.health(),
            controller=controller,
            latencies=latencies,
            ended_programs=ended,
            classes=classes,
            num_programs_running=len(parts.programs.running()),
            num_sessions=len(parts.sessions),
            num_calls=len(parts.sessions.calls()),
            uptime_s=self._life.uptime_s,
            kept_rows=parts.services.kept_rows.statistics(),
            sharing=parts.services.shared_results.statistics(),
            speculation=parts.services.speculation.statistics(),
            recording_failure=self._life.recording_failure,
            spans=None if parts.spans is None else parts.spans.counts(),
        )

    def public_id(self, program: ProgramId) -> str | None:
        return self._parts.programs.public_id(program) or self._parts.sessions.public_id(program)

    def _records(self, rows: Sequence[ProcessRow]) -> list[ProcessRecord]:
        return [ProcessRecord(self.public_id(row.program), row) for row in rows]
