"""The process table (Autellix 4.2): one entry per program, of any form.

Owns what is known of each program and in which order idle ones became idle. Decides nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quire.control.accounts import Account
from quire.control.failures import Failures
from quire.control.id_ranges import IdRanges
from quire.control.queues import CommandQueue, Entry
from quire.control.resources.embeds import Embed
from quire.control.resources.pages import Page
from quire.core.config import TenantTotals
from quire.core.errors import ErrorRecord
from quire.core.events import ProgramForm, ProgramStarted
from quire.core.ids import (
    CommandId,
    EmbedId,
    EngineId,
    PageId,
    ProgramId,
    QueueId,
    TenantId,
    TokenSlotId,
)

MAX_REFUSED_QUEUES = 256
"""Of one program, the latest: what is issued on them is told why there is none."""

ProgramState = Literal["idle", "waiting", "running"]


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One program as ``ps`` and /metrics show it. Times in seconds of the event clock."""

    program: ProgramId
    tenant: TenantId
    form: ProgramForm
    name: str
    client_id: str | None
    state: ProgramState
    num_queues: int
    num_pages: int
    num_device_blocks: int
    num_host_blocks: int
    num_pending_commands: int
    num_generated_tokens: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    service_s: float
    waiting_s: float
    started_s: float
    last_arrival_s: float | None
    last_completion_s: float | None
    num_preemptions: int


class Program:
    """Everything control knows of one program.

    ``serial`` orders programs by age. ``entries`` are its unfinished commands; ``ended`` and
    ``failed`` remember the others for ``after``. ``account`` is its tenant's. ``launcher`` and
    ``launched`` are its family (``control.families``), ``num_family_tokens`` what all below it have
    generated too.
    """

    def __init__(
        self, started: ProgramStarted, serial: int, account: Account | None = None
    ) -> None:
        self.account = account or Account(started.tenant)
        self.id = started.program
        self.tenant = started.tenant
        self.form: ProgramForm = started.form
        self.name = started.name
        self.client_id = started.client_id
        self.parent = started.parent
        self.launcher: Program | None = None
        self.launched: dict[ProgramId, Program] = {}
        self.priority = started.priority
        self.deadline_s = started.deadline_s
        self.idle_ttl_s = started.idle_ttl_s
        self.quotas = started.quotas
        self.serial = serial
        self.started_s = started.time_s
        self.idle_since_s = started.time_s
        self.queues: dict[QueueId, CommandQueue] = {}
        self.refused_queues: dict[QueueId, ErrorRecord] = {}
        self.entries: dict[CommandId, Entry] = {}
        self.ended = IdRanges()
        self.failed = Failures()
        self.pages: dict[PageId, Page] = {}
        self.embeds: dict[EmbedId, Embed] = {}
        self.token_slots: dict[tuple[EngineId, TokenSlotId], int] = {}
        self.num_held_pages = 0
        self.num_held_embeds = 0
        self.num_running = 0
        self.num_generated_tokens = 0
        self.num_family_tokens = 0
        self.num_prefilled_tokens = 0
        self.num_cached_tokens = 0
        self.service_s = 0.0
        self.waiting_s = 0.0
        self.last_arrival_s: float | None = None
        self.last_completion_s: float | None = None
        self.num_preemptions = 0

    @property
    def state(self) -> ProgramState:
        if not self.entries:
            return "idle"
        return "running" if self.num_running else "waiting"

    def refuse_queue(self, queue: QueueId, error: ErrorRecord) -> None:
        """Its creation is not answered, so its first commands are."""
        self.refused_queues[queue] = error
        if len(self.refused_queues) > MAX_REFUSED_QUEUES:
            del self.refused_queues[next(iter(self.refused_queues))]

    def row(self) -> ProcessRow:
        contents = {
            id(page.content): page.content for page in self.pages.values() if page.content
        }.values()
        return ProcessRow(
            program=self.id,
            tenant=self.tenant,
            form=self.form,
            name=self.name,
            client_id=self.client_id,
            state=self.state,
            num_queues=len(self.queues),
            num_pages=len(self.pages),
            num_device_blocks=sum(content.block is not None for content in contents),
            num_host_blocks=sum(content.host_block is not None for content in contents),
            num_pending_commands=len(self.entries),
            num_generated_tokens=self.num_generated_tokens,
            num_prefilled_tokens=self.num_prefilled_tokens,
            num_cached_tokens=self.num_cached_tokens,
            service_s=self.service_s,
            waiting_s=self.waiting_s,
            started_s=self.started_s,
            last_arrival_s=self.last_arrival_s,
            last_completion_s=self.last_completion_s,
            num_preemptions=self.num_preemptions,
        )


class ProcessTable:
    """Programs by id, and which of them have no unfinished command (longest idle first).

    ``holders``: per engine, idle programs that may hold device blocks there. Who finds a program
    without any takes it out; it comes back when it is idle again. ``totals``: of the tenants that
    are configured.
    """

    def __init__(self, totals: Mapping[TenantId, TenantTotals] | None = None) -> None:
        self._totals = totals or {}
        self._accounts: dict[TenantId, Account] = {}
        self._programs: dict[ProgramId, Program] = {}
        self._num_started = 0
        self.idle: OrderedDict[ProgramId, Program] = OrderedDict()
        self.active: OrderedDict[ProgramId, Program] = OrderedDict()
        self.holders: dict[EngineId, OrderedDict[ProgramId, Program]] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def start(self, started: ProgramStarted) -> Program:
        assert started.program not in self._programs, f"program {started.program} starts twice"
        program = Program(started, self._num_started, self._account(started.tenant))
        self._num_started += 1
        self._programs[program.id] = program
        self.idle[program.id] = program
        return program

    def _account(self, tenant: TenantId) -> Account:
        """Kept for good: tenants are few, and what they hold may outlive their programs."""
        account = self._accounts.get(tenant)
        if account is None:
            totals = self._totals.get(tenant) or TenantTotals()
            account = self._accounts[tenant] = Account(tenant, totals)
        return account

    def get(self, program: ProgramId) -> Program | None:
        return self._programs.get(program)

    def end(self, program: Program) -> None:
        del self._programs[program.id]
        self.idle.pop(program.id, None)
        self.active.pop(program.id, None)
        self._drop_holder(program)

    def _drop_holder(self, program: Program) -> None:
        for holders in self.holders.values():
            holders.pop(program.id, None)

    def note_holder(self, program: Program) -> None:
        """``program`` is idle and may hold blocks on the engines of its queues."""
        for queue in program.queues.values():
            holders = self.holders.get(queue.engine)
            if holders is None:
                holders = self.holders[queue.engine] = OrderedDict()
            holders[program.id] = program

    def add_entry(self, entry: Entry, now_s: float) -> None:
        program = entry.program
        program.entries[entry.id] = entry
        program.account.num_commands += 1
        program.last_arrival_s = now_s
        if self.idle.pop(program.id, None) is not None:
            self.active[program.id] = program
            self._drop_holder(program)

    def end_entry(self, entry: Entry, now_s: float) -> None:
        program = entry.program
        del program.entries[entry.id]
        program.account.num_commands -= 1
        program.ended.add(entry.id)
        program.last_completion_s = now_s
        if not program.entries and self.active.pop(program.id, None) is not None:
            program.idle_since_s = now_s
            self.idle[program.id] = program
            self.note_holder(program)

    def programs(self) -> list[Program]:
        return list(self._programs.values())

    def rows(self) -> tuple[ProcessRow, ...]:
        return tuple(program.row() for program in self._programs.values())

    def check_invariants(self) -> None:
        for program in self._programs.values():
            is_idle = program.id in self.idle
            assert is_idle != (program.id in self.active), "a program is idle or active"
            assert is_idle == (not program.entries), "idle means no unfinished command"
            for entry in program.entries.values():
                assert entry in entry.queue.entries, "an unfinished command stands in its queue"
        for account in self._accounts.values():
            self._check_account(account)

    def _check_account(self, account: Account) -> None:
        """Of a program that has ended, what is in flight is still counted."""
        programs = [one for one in self._programs.values() if one.account is account]
        assert account.num_queues == sum(len(program.queues) for program in programs)
        assert account.num_commands >= sum(len(program.entries) for program in programs)
        assert account.num_pages >= sum(len(program.pages) for program in programs)
        assert account.num_embeds >= sum(len(program.embeds) for program in programs)


__all__ = ["ProcessRow", "ProcessTable", "Program", "ProgramState"]
