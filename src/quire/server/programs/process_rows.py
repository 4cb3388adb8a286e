"""The API's bodies about changes of programs."""

from __future__ import annotations

from dataclasses import asdict

from quire.control import EngineStatistics, ProcessRow, Wait
from quire.node import NodeChanges, NodeHealth
from quire.server.schemas.changes import Changes, EngineMessage, EngineRow, NodeRow, ProcessWait
from quire.server.schemas.changes import ProcessRow as RowBody


def changes_body(changes: NodeChanges, started_unix_s: int) -> Changes:
    """Return the body. ``started_unix_s``: when the server started; it marks ``since`` as this
    server's."""
    offset_s = changes.unix_offset_s
    return Changes(
        object="program.changes",
        next=f"{started_unix_s}-{changes.number}",
        whole=changes.is_whole,
        more=changes.more,
        programs=[_row(one.row, one.id, offset_s) for one in changes.records],
        ended=[int(program) for program in changes.ended],
        engines=[_engine(one, changes.health) for one in changes.engines],
        node=NodeRow(
            ready=changes.health.ready,
            detail=changes.health.detail,
            policy=changes.policy,
            time=changes.unix_s,
            uptime_s=changes.uptime_s,
        ),
    )


def _row(row: ProcessRow, public_id: str | None, offset_s: float) -> RowBody:
    return RowBody(
        process=row.program,
        id=public_id,
        parent=row.parent,
        form=row.form,
        name=row.name,
        client_id=row.client_id,
        tenant=row.tenant,
        state=row.state,
        wait=None if row.wait is None else _wait(row.wait, offset_s),
        level=row.level,
        engines=[str(engine) for engine in row.engines],
        num_calls=row.num_calls,
        num_queues=row.num_queues,
        num_pages=row.num_pages,
        num_device_blocks=row.num_device_blocks,
        num_host_blocks=row.num_host_blocks,
        num_disk_blocks=row.num_disk_blocks,
        num_generated_tokens=row.num_generated_tokens,
        num_prefilled_tokens=row.num_prefilled_tokens,
        num_cached_tokens=row.num_cached_tokens,
        num_encoded_tokens=row.num_encoded_tokens,
        num_preemptions=row.num_preemptions,
        service_s=row.service_s,
        path_s=row.path_s,
        cost_s=row.cost_s,
        waiting_s=row.waiting_s,
        created=row.started_s + offset_s,
    )


def _wait(wait: Wait, offset_s: float) -> ProcessWait:
    return ProcessWait(reason=wait.reason.value, since=wait.since_s + offset_s)


def _engine(engine: EngineStatistics, health: NodeHealth) -> EngineRow:
    pool, known = engine.pool, health.engines.get(engine.engine)
    return EngineRow(
        engine=engine.engine,
        model=engine.model,
        state="stopped" if known is None else str(known.state),
        detail="" if known is None else known.detail,
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
        num_in_flight=engine.num_in_flight,
        messages=[EngineMessage(**asdict(message)) for message in engine.messages],
        num_blocks=pool.num_blocks,
        num_held_blocks=pool.num_held,
        num_cached_blocks=pool.num_cached,
        num_host_blocks=pool.num_host_blocks,
        num_free_host_blocks=pool.num_host_free,
        num_cached_host_blocks=pool.num_host_cached,
        num_disk_blocks=pool.num_disk_blocks,
        num_free_disk_blocks=pool.num_disk_free,
        num_cached_disk_blocks=pool.num_disk_cached,
        num_messages=engine.num_batches,
        num_rows=engine.num_rows,
        num_tokens=engine.num_tokens,
        step_s=engine.step_s,
    )
