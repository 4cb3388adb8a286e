"""Putting a program into the process table, whatever its form."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quire.core.events import ProgramForm, ProgramStarted, Quotas
from quire.core.ids import ProgramId, TenantId
from quire.core.interfaces import ReplySink
from quire.node.control_thread import ControlThread


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """What control is told of a program when it starts."""

    tenant: TenantId
    form: ProgramForm
    name: str
    client_id: str | None = None
    parent: ProgramId | None = None
    priority: int = 0
    quotas: Quotas = Quotas()


def start_program(
    control: ControlThread,
    program: ProgramId,
    start: ProgramStart,
    loop: asyncio.AbstractEventLoop,
    sink: ReplySink,
) -> None:
    """Enter ``program``; its replies go to ``sink`` on ``loop``. From any thread.

    Raises:
        QuireError: the control thread has failed.
    """
    control.add_program(program, loop, sink)
    control.post(
        lambda t: ProgramStarted(
            time_s=t,
            program=program,
            tenant=start.tenant,
            form=start.form,
            name=start.name,
            client_id=start.client_id,
            parent=start.parent,
            priority=start.priority,
            quotas=start.quotas,
        )
    )


__all__ = ["ProgramStart", "start_program"]
