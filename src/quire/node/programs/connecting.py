"""Connects a launched program to the node: its number, port, services and replay.

Called by runtimes on the loop that the program runs on. Must not know how it is executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from quire.core.ids import ProgramId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.node.control.control_thread import ControlThread
from quire.node.control.preparation import Preparation
from quire.node.control.program_start import ProgramStart, start_program
from quire.node.models import ModelTable
from quire.node.programs.children import Ancestry, ChildLauncher
from quire.node.programs.figures import ProgramFigures
from quire.node.programs.restarting.restarts import Restarts
from quire.node.programs.services import NodeServices
from quire.node.tracing.parents import TraceParents
from quire.programs.runtime.event_port import EventPort
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.services.operations import Identity


class ProgramConnector:
    """Gives launched programs their ports. ``numbers`` gives every program a number of its own; it
    is shared with the sessions.
    ``preparation`` handles images and grammars in commands. ``figures`` keeps what each program has
    used."""

    def __init__(
        self,
        control: ControlThread,
        services: NodeServices,
        models: ModelTable,
        numbers: Iterator[ProgramId],
        preparation: Preparation,
        figures: ProgramFigures,
        parents: TraceParents,
    ) -> None:
        self._parents = parents
        self._figures = figures
        self._preparation = preparation
        self._control = control
        self._services = services
        # bound once, not for each of a thousand launches in a turn
        self._models = models.models
        self._post, self._post_gathered = control.post, control.post_gathered
        self._numbers = numbers

    def connect(
        self,
        start: ProgramStart,
        ancestry: Ancestry,
        children: ChildLauncher,
        restarts: Restarts | None,
        sink: ReplySink,
        loop: asyncio.AbstractEventLoop,
    ) -> ProgramPort:
        """Enter the program into the process table and return its port; its replies go to ``sink``
        on ``loop``.

        Raises:
            QuireError: the control thread has failed.
        """
        number = next(self._numbers)
        replay = None if restarts is None else ReplayPort(restarts.log, sink, loop)
        self._figures.expect(number)
        self._parents.note(number, start.traceparent)
        start_program(self._control, number, start, loop, replay or sink)
        identity = Identity(number, start.tenant, start.name, ancestry.program.capabilities)
        port = EventPort(
            number,
            start.quotas,
            self._models,
            self._post_gathered,
            self._services.of(identity, ancestry, children, restarts),
            ancestry.seed,
            clock=self._control.clock,
            post_now=self._post,
            prepare=self._preparation.of(start.tenant),
        )
        if replay is None:
            return port
        replay.attach(port)
        return replay
