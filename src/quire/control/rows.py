"""One program as readers outside control see it.

Owns the fields of a row and where each figure comes from. ``feed`` chooses the rows of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.control.engines.engine import ControlledEngine
from quire.control.programs.program import Program, ProgramState
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.control.waits import Wait, wait_of
from quire.core.ids import EngineId, ProgramForm, ProgramId, TenantId


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One program as ``ps``, ``top`` and /metrics show it. Times are in seconds of the event clock;
    for service and cost see ``programs.service``.

    ``parent``: the program that launched it, as named at its start. ``engines``: those that its
    queues are placed on. ``num_calls``: unfinished commands that need an engine. ``level``: the
    smallest level that the policy has given to one of them; None: it has given none. ``wait``: what
    it waits for; None while it runs.
    """

    program: ProgramId
    tenant: TenantId
    form: ProgramForm
    name: str
    client_id: str | None
    state: ProgramState
    num_queues: int
    num_threads: int
    num_pages: int
    num_device_blocks: int
    num_host_blocks: int
    num_disk_blocks: int
    num_pending_commands: int
    num_generated_tokens: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_encoded_tokens: int
    service_s: float
    path_s: float
    cost_s: float
    waiting_s: float
    started_s: float
    last_arrival_s: float | None
    last_completion_s: float | None
    num_preemptions: int
    parent: ProgramId | None = None
    engines: tuple[EngineId, ...] = ()
    num_calls: int = 0
    level: float | None = None
    wait: Wait | None = None


class ProcessRows:
    """Makes rows. ``places`` and ``schedulers`` are shared with the controller."""

    def __init__(
        self,
        places: Mapping[EngineId, ControlledEngine],
        schedulers: Mapping[EngineId, EngineScheduler],
    ) -> None:
        self._places = places
        self._schedulers = schedulers

    def row(self, program: Program) -> ProcessRow:
        num_device, num_host, num_disk = count_blocks(program)
        figures = program.figures
        return ProcessRow(
            program=program.id,
            tenant=program.tenant,
            form=program.form,
            name=program.name,
            client_id=program.client_id,
            state=program.state,
            num_queues=len(program.queues),
            num_threads=program.threads.num_begun,
            num_pages=len(program.pages),
            num_device_blocks=num_device,
            num_host_blocks=num_host,
            num_disk_blocks=num_disk,
            num_pending_commands=len(program.entries),
            num_generated_tokens=program.num_generated_tokens,
            num_prefilled_tokens=program.num_prefilled_tokens,
            num_cached_tokens=program.num_cached_tokens,
            num_encoded_tokens=program.num_encoded_tokens,
            service_s=figures.service_s,
            path_s=figures.path_s,
            cost_s=program.cost_s,
            waiting_s=figures.waiting_s,
            started_s=program.started_s,
            last_arrival_s=program.last_arrival_s,
            last_completion_s=program.last_completion_s,
            num_preemptions=program.num_preemptions,
            parent=program.parent,
            engines=_engines(program),
            num_calls=program.num_calls,
            level=_level(program),
            wait=self.wait(program),
        )

    def wait(self, program: Program) -> Wait | None:
        return wait_of(program, self._places, self._schedulers)

    def mark(self, program: Program) -> tuple[object, ...]:
        """A value that changes only if the program's row changes. Costs less than a row, as it
        reads no page."""
        figures = program.figures
        return (
            len(program.entries),
            program.num_running,
            len(program.queues),
            len(program.pages),
            figures.service_tokens,
            figures.waiting_s,
            program.num_generated_tokens,
            program.num_cached_tokens,
            program.num_encoded_tokens,
            program.num_preemptions,
            self.wait(program),
        )


def count_blocks(program: Program) -> tuple[int, int, int]:
    """Blocks of ``program`` on devices, hosts and disks; pages that share one count it once."""
    contents = {
        id(page.content): page.content for page in program.pages.values() if page.content
    }.values()
    return (
        sum([content.block is not None for content in contents]),
        sum([content.host_block is not None for content in contents]),
        sum([content.disk_block is not None for content in contents]),
    )


def _engines(program: Program) -> tuple[EngineId, ...]:
    placed = (queue.placed_on for queue in program.queues.values())
    return tuple(sorted({engine for engine in placed if engine is not None}))


def _level(program: Program) -> float | None:
    levels = [entry.rank[1] for entry in program.entries.values() if entry.rank is not None]
    return min(levels, default=None)
