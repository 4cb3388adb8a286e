"""The process table (Autellix 4.2): one entry per program, of any form.

Owns which programs there are and in which order idle ones became idle. Decides nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from quire.control.programs.accounts import Account
from quire.control.programs.ages import ByAge
from quire.control.programs.changes import Changes
from quire.control.programs.program import Entry, Program
from quire.control.programs.service import note_child_path, note_path
from quire.core.commands import AllocPages, ImportPages, ImportPrefix
from quire.core.config import TenantTotals
from quire.core.events import ProgramStarted
from quire.core.ids import EngineId, ProgramId, TenantId
from quire.core.lease_commands import TakeLease

_IMPORTS = (ImportPages, ImportPrefix, TakeLease)
"""Commands that give pages contents without a message."""


class ProcessTable:
    """Programs by id, and which of them have no unfinished command (longest idle first).

    ``holders``: per engine, idle and paused programs that may hold device blocks there. A reader
    that finds a program without any takes it out; it comes back when it is idle again. Active ones
    that may hold blocks are kept by age: one that has only queued its first commands holds none.
    ``changes`` notes programs that start, become idle or end, but no changes of active ones.
    ``totals``: of the tenants that are configured.
    """

    def __init__(self, totals: Mapping[TenantId, TenantTotals] | None = None) -> None:
        self._totals = totals or {}
        self._accounts: dict[TenantId, Account] = {}
        self._programs: dict[ProgramId, Program] = {}
        self._num_started = 0
        self.idle: OrderedDict[ProgramId, Program] = OrderedDict()
        self.active: OrderedDict[ProgramId, Program] = OrderedDict()
        self.holders: dict[EngineId, OrderedDict[ProgramId, Program]] = {}
        self.changes = Changes()
        self._ages = ByAge()
        self._active_holders = ByAge()

    @property
    def oldest_active(self) -> Program | None:
        return self._ages.oldest

    def active_holders(self) -> Iterator[Program]:
        """Active programs that may hold blocks somewhere, the youngest first."""
        return self._active_holders.youngest_first()

    def note_active_holder(self, program: Program) -> None:
        """Note that a message carries a command of ``program``, which is active."""
        if program.id in self.active:
            self._active_holders.add(program)

    def __len__(self) -> int:
        return len(self._programs)

    def start(self, started: ProgramStarted) -> Program:
        assert started.program not in self._programs, f"program {started.program} starts twice"
        account = self._account(started.tenant)
        program = Program(started, self._num_started, account, self._parent_of(started))
        self._num_started += 1
        self._programs[program.id] = program
        self.idle[program.id] = program
        self.changes.touch(program)
        return program

    def _parent_of(self, started: ProgramStarted) -> Program | None:
        """The parent; None if it is unknown or of another tenant."""
        parent = None if started.parent is None else self._programs.get(started.parent)
        return parent if parent is not None and parent.tenant == started.tenant else None

    def _account(self, tenant: TenantId) -> Account:
        """The account of ``tenant``. It is kept for good: tenants are few, and their exports may
        outlive their programs."""
        account = self._accounts.get(tenant)
        if account is None:
            totals = self._totals.get(tenant) or TenantTotals()
            account = self._accounts[tenant] = Account(tenant, totals)
        return account

    def get(self, program: ProgramId) -> Program | None:
        return self._programs.get(program)

    def end(self, program: Program) -> None:
        del self._programs[program.id]
        if program.parent is not None and program.parent in self._programs:
            note_child_path(program, self._programs[program.parent])
        self.idle.pop(program.id, None)
        self.active.pop(program.id, None)
        self._ages.discard(program)
        self._active_holders.discard(program)
        self._drop_holder(program)
        self.changes.end(program)

    def _drop_holder(self, program: Program) -> None:
        for holders in self.holders.values():
            holders.pop(program.id, None)

    def note_holder(self, program: Program) -> None:
        """Note that ``program``, which is idle, may hold blocks on the engines of its queues."""
        for queue in program.queues.values():
            if queue.placed_on is not None:
                holders = self.holders.setdefault(queue.placed_on, OrderedDict())
                holders[program.id] = program

    def offer_holder(self, program: Program, engine: EngineId) -> None:
        """Put ``program``, which is paused, first among the holders, although it is active."""
        holders = self.holders.setdefault(engine, OrderedDict())
        holders[program.id] = program
        holders.move_to_end(program.id, last=False)

    def keep_holder(self, program: Program, engine: EngineId) -> None:
        """Take ``program``, which is no longer paused, out of the holders if it is active."""
        if program.id in self.active and engine in self.holders:
            self.holders[engine].pop(program.id, None)

    def add_entry(self, entry: Entry, now_s: float) -> None:
        """Append ``entry``, which was checked, to its queue."""
        program = entry.program
        entry.queue.entries.append(entry)
        program.entries[entry.id] = entry
        program.account.num_commands += 1
        program.last_arrival_s = now_s
        if self.idle.pop(program.id, None) is not None:
            self.active[program.id] = program
            self._ages.add(program)
            self._drop_holder(program)
            if _may_hold(program, entry):
                self._active_holders.add(program)
        elif type(entry.command) in _IMPORTS:
            self._active_holders.add(program)

    def end_entry(self, entry: Entry, now_s: float) -> None:
        program = entry.program
        del program.entries[entry.id]
        program.account.num_commands -= 1
        program.ended.add(entry.id)
        program.last_completion_s = program.figures.completion_s = now_s
        if entry.service_tokens:
            note_path(entry)
        program.threads.figures(entry.queue.thread).completion_s = now_s
        if not program.entries and self.active.pop(program.id, None) is not None:
            program.idle_since_s = now_s
            self._ages.discard(program)
            self._active_holders.discard(program)
            self.idle[program.id] = program
            self.note_holder(program)
            self.changes.touch(program)

    def programs(self) -> list[Program]:
        return list(self._programs.values())

    def check_invariants(self) -> None:
        for program in self._programs.values():
            is_idle = program.id in self.idle
            assert is_idle != (program.id in self.active), "a program is idle or active"
            assert is_idle == (not program.entries), "idle means no unfinished command"
            for entry in program.entries.values():
                assert entry in entry.queue.entries, "an unfinished command stands in its queue"
        self._ages.check_invariants()
        self._active_holders.check_invariants()
        for program in self._programs.values():
            assert (program in self._ages) == (program.id in self.active)
            holds = any(page.content is not None for page in program.pages.values())
            is_known = program in self._active_holders
            assert is_known or not holds or program.id in self.idle, "a holder is not known"
        self.changes.check_invariants(self._programs)
        for account in self._accounts.values():
            self._check_account(account)

    def _check_account(self, account: Account) -> None:
        """Assert that ``account`` counts at least what its programs have. Commands in flight of
        programs that have ended are still counted."""
        programs = [one for one in self._programs.values() if one.account is account]
        assert account.num_queues == sum(len(program.queues) for program in programs)
        assert account.num_commands >= sum(len(program.entries) for program in programs)
        assert account.num_pages >= sum(len(program.pages) for program in programs)
        assert account.num_embeds >= sum(len(program.embeds) for program in programs)


def _may_hold(program: Program, entry: Entry) -> bool:
    """Whether a page of ``program`` may have a content, when ``entry`` is its only command."""
    is_first = type(entry.command) is AllocPages and len(program.pages) == len(entry.pages)
    return bool(program.pages) and not is_first
