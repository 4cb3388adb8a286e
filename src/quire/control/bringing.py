"""Brings the pages that programs import from other engines: ``prep_recv``, then ``remote_send``.

Owns the two commands that control issues for each such import, on queues of its own in the
program: ``OpenLease`` on the importing engine, then ``SendPages`` on the one that has the pages.
They are scheduled, cancelled and charged as the program's other commands are. The import itself
maps what has arrived (``commands.far_imports``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from quire.control.calls import CallHandler
from quire.control.commands.far_imports import FarImport, FarImports
from quire.control.commands.flow import Flow
from quire.control.engines.leasing import end_lease
from quire.control.engines.state import EngineState
from quire.control.memory.exports import ExportTable
from quire.control.memory.leases import LeaseTable
from quire.control.memory.pages import Page
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.core.errors import ErrorRecord, UnknownHandle
from quire.core.exchange import KEY_BYTES, SendTarget
from quire.core.ids import CommandId, EngineId, PageId
from quire.core.lease_commands import Leased, OpenLease, SendPages

TTL_S = 300.0
"""How long an import's lease stays open; an import that has not arrived by then fails."""


class Bringing:
    """Opens a lease for each import from another engine and has it filled.

    ``engines``, ``exports`` and ``leases`` are shared with the controller.
    """

    def __init__(
        self,
        engines: Mapping[EngineId, EngineState],
        far_imports: FarImports,
        exports: ExportTable,
        leases: LeaseTable,
        calls: CallHandler,
        flow: Flow,
    ) -> None:
        self._engines = engines
        self._far_imports = far_imports
        self._exports = exports
        self._leases = leases
        self._calls = calls
        self._flow = flow
        self._num_leases = 0
        self._opened: list[FarImport] = []

    @property
    def has_work(self) -> bool:
        far = self._far_imports
        return bool(far.wanted or far.over or self._opened)

    def go_on(self) -> None:
        """Take the next step of each import that has one."""
        while self.has_work:
            far_imports, self._far_imports.wanted = self._far_imports.wanted, []
            for far in far_imports:
                self._open(far)
            opened, self._opened = self._opened, []
            for far in opened:
                self._send(far)
            over, self._far_imports.over = self._far_imports.over, []
            for far in over:
                self._end(far)

    def _open(self, far: FarImport) -> None:
        if not self._far_imports.is_under_way(far):
            return  # it ended in the same moment, perhaps with its program
        if self._exports.get(far.export.tenant, far.export.name) is not far.export:
            what = f"export {far.export.name!r} was removed before it was imported"
            self._fail(far, UnknownHandle(f"{what}: export it again").record())
            return
        self._hold(far)
        queue = self._queue(far, far.engine)
        command = OpenLease(
            id=_new_command(far.entry.program),
            tokens=far.to_come.tokens,
            opaque=far.to_come.opaque,
            adapter=far.to_come.adapter,
            key=self._new_key(self._engines[far.engine]),
            ttl_s=TTL_S,
        )
        self._flow.issue_own(queue, command, lambda entry: self._lease_opened(far, entry))

    def _hold(self, far: FarImport) -> None:
        """Hold the export's pages in a queue on its engine: the export may be removed meanwhile."""
        program, export = far.entry.program, far.export
        queue = self._queue(far, export.engine)
        memory = self._engines[export.engine].memory
        number = min((page_id for page_id in program.pages), default=PageId(0))
        for index, snapshot in enumerate(export.pages, 1):
            page = Page(PageId(min(number, 0) - index), export.engine, queue.id)
            page.fill, page.positions = snapshot.fill, snapshot.positions
            page.is_released = True  # the program did not make it, and may not name it
            if snapshot.content is not None:
                page.content = memory.retain(snapshot.content)
                page.is_lost = snapshot.content.is_lost and not snapshot.content.canonical
            program.pages[page.id] = page
            queue.pages[page] = None
        program.account.num_pages += len(export.pages)

    def _queue(self, far: FarImport, engine: EngineId) -> CommandQueue:
        queue = self._calls.open_own_queue(far.entry.queue, engine)
        far.queues.append(queue)
        return queue

    def _new_key(self, engine: EngineState) -> bytes:
        self._num_leases += 1
        said = b"%d %d %s" % (self._num_leases, engine.epoch, engine.info.data_salt)
        return hashlib.sha256(said).digest()[:KEY_BYTES]

    def _lease_opened(self, far: FarImport, entry: Entry) -> None:
        if entry.error is not None:
            self._fail(far, entry.error)
            return
        leased = entry.reply
        assert isinstance(leased, Leased)
        far.lease = leased.lease
        self._opened.append(far)

    def _send(self, far: FarImport) -> None:
        """Send what the open lease waits for, unless the import has ended."""
        assert far.lease is not None
        lease = self._leases.get(far.lease.number)
        if lease is None or lease.is_complete or not self._far_imports.is_under_way(far):
            self._look_again(far)
            return
        target = self._engines[far.engine]
        holder = far.queues[0]
        num_matched = len(lease.matched) * target.page_size
        command = SendPages(
            id=_new_command(far.entry.program),
            pages=[page.id for page in holder.pages],
            begin=num_matched,
            num_tokens=far.to_come.num_slots - num_matched,
            target=SendTarget(
                address=target.info.data_address,
                lease=lease.name.number,
                key=lease.name.key,
                first=0,
            ),
            content=target.info.content,
        )
        self._flow.issue_own(holder, command, lambda entry: self._sent(far, entry))

    def _sent(self, far: FarImport, entry: Entry) -> None:
        if entry.error is not None:
            self._fail(far, entry.error)

    def _fail(self, far: FarImport, error: ErrorRecord) -> None:
        far.error = error
        self._look_again(far)

    def _look_again(self, far: FarImport) -> None:
        """Have the import tried again; it waits on its queue until a lease or command ends."""
        self._flow.note_lease()
        self._engines[far.engine].wake()

    def _end(self, far: FarImport) -> None:
        """Close the lease and the queues of an import that has ended, in whatever way."""
        lease = None if far.lease is None else self._leases.get(far.lease.number)
        if lease is not None:
            why = "was closed: its import has ended"
            end_lease(self._engines[far.engine], self._leases, lease, why)
        for queue in far.queues:
            if not queue.is_closed:
                self._calls.close_queue(queue, "its import has ended")


def _new_command(program: Program) -> CommandId:
    """An id that is not used yet, below 0, where programs choose none."""
    number = min(program.ended.lowest, 0) - 1
    while number in program.entries:
        number -= 1
    return CommandId(number)
