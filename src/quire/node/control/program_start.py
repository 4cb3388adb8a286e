"""Enters a program of any form into the process table."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from quire.core.events import EventAt, ProgramStarted
from quire.core.ids import ProgramForm, ProgramId, TenantId, ThreadId
from quire.core.interfaces import ReplySink
from quire.core.quotas import Quotas
from quire.node.control.control_thread import ControlThread


class ProgramStart(msgspec.Struct, frozen=True):
    """The properties that control receives when a program starts: see ``ProgramStarted``.

    ``deadline_s`` counts from the start. ``traceparent``: that of the client's request; control
    does not receive it.
    """

    tenant: TenantId
    form: ProgramForm
    name: str
    kind: str = ""
    client_id: str | None = None
    parent: ProgramId | None = None
    parent_thread: ThreadId | None = None
    priority: int = 0
    deadline_s: float | None = None
    quotas: Quotas = Quotas()
    shares_quotas: bool = False
    traceparent: str | None = None

    def event_of(self, program: ProgramId) -> EventAt:
        """The event that enters ``program``, once its time is known."""
        return partial(self._at, program)

    def _at(self, program: ProgramId, time_s: float) -> ProgramStarted:
        return ProgramStarted(
            time_s=time_s,
            program=program,
            tenant=self.tenant,
            form=self.form,
            name=self.name,
            kind=self.kind,
            client_id=self.client_id,
            parent=self.parent,
            parent_thread=self.parent_thread,
            priority=self.priority,
            deadline_s=None if self.deadline_s is None else time_s + self.deadline_s,
            quotas=self.quotas,
            shares_quotas=self.shares_quotas,
        )


def start_program(
    control: ControlThread,
    program: ProgramId,
    start: ProgramStart,
    loop: asyncio.AbstractEventLoop,
    sink: ReplySink,
) -> None:
    """Enter ``program``; its replies go to ``sink`` on ``loop``. For any thread.

    Raises:
        QuireError: the control thread has failed.
    """
    control.add_program(program, loop, sink)
    control.post(start.event_of(program))
