"""A node in virtual time: the production controller over one modelled engine.

Owns the time of the node's next event, and its programs, each a session of one call.
Must not know routers.
"""

from __future__ import annotations

import asyncio
from itertools import count
from math import inf

from msgspec.structs import replace

from quire.cluster.simulation.virtual_port import LoopClock, VirtualPort, served
from quire.control import Controller
from quire.core.actions import Deliver, Fail, ProgramClosed, Terminate
from quire.core.batch import Batch
from quire.core.events import Event, ExchangeEnded
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.ids import EngineId, ModelId, ProgramId
from quire.core.interfaces import ReplySink
from quire.core.scheduler_config import SchedulerConfig
from quire.programs.api import Api
from quire.programs.api.issuer import Issuer
from quire.simulation.clock import VirtualClock
from quire.simulation.engines import MODEL, EngineSpec
from quire.simulation.exchange import VirtualNetwork
from quire.simulation.player import Figures
from quire.simulation.shell import VirtualShell


class VirtualNode:
    """``loop`` runs in the time of ``clock``; the engine exchanges K and V over ``network``.
    ``check``: verify control's invariants after every event."""

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        scheduler: SchedulerConfig,
        loop: asyncio.AbstractEventLoop,
        clock: VirtualClock,
        network: VirtualNetwork,
        *,
        check: bool = False,
    ) -> None:
        self.name = name
        self.figures = Figures()
        self.has_news = True
        """Whether anything has happened since the last reader set this to false."""
        self._loop = loop
        self._clock = LoopClock(clock)
        self._network = network
        self.controller = Controller(scheduler)
        self._shell = VirtualShell(
            self.controller,
            clock=clock,
            check=check,
            on_answer=self._answered,
            on_closed=self._closed,
            on_run=self._ran,
        )
        self._engine = EngineId(f"{MODEL}#0")
        self._sinks: dict[ProgramId, ReplySink] = {}
        self._programs = count(1)
        self._events: list[Event] = []
        self._armed: asyncio.TimerHandle | None = None
        engine = spec.engine(name)
        self.model = served(engine.info)
        network.join(name, spec.num_layers, spec.token_bytes, self._exchanged)
        self._shell.start_engine(self._engine, engine, overhead=spec.cost.overhead)

    @property
    def model_id(self) -> ModelId:
        return self.model.id

    def api(self) -> Api:
        """Return the API of a new program. The caller must close it."""
        issuer = Issuer(self._loop)
        program = ProgramId(next(self._programs))
        self._sinks[program] = issuer
        issuer.attach(VirtualPort(program, self.model, self._clock, self._post, self._left))
        return Api(issuer)

    def _left(self, program: ProgramId) -> None:
        self._sinks.pop(program, None)

    # -- events ------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        """Post an event. Calls at the same time belong together: control decides after the last of
        them."""
        if not self._events:
            self._loop.call_soon(self._flush)
        self._events.append(event)

    def _flush(self) -> None:
        events, self._events = self._events, []
        for event in events[:-1]:
            self._shell.post(replace(event, more=True))
        self._shell.post(events[-1])
        self._go_on()

    def _exchanged(self, ended: SendEnded | ReceiveEnded) -> None:
        now_s = self._clock.now_s()
        self._shell.post(ExchangeEnded(time_s=now_s, engine=self._engine, ended=ended))
        self._go_on()

    def _ran(self, batch: Batch, begin_s: float, end_s: float) -> None:
        self._network.ran(self.name, batch, begin_s, end_s)

    def _go_on(self) -> None:
        """Wake up at the node's next event."""
        self.has_news = True
        end = self._shell.next_end()
        due_s = min(inf if end is None else end[0], self._timer_s)
        if self._armed is not None:
            if self._armed.when() == due_s:
                return
            self._armed.cancel()
            self._armed = None
        if due_s < inf:
            self._armed = self._loop.call_at(due_s, self._happen)

    @property
    def _timer_s(self) -> float:
        return inf if self._shell.timer_s is None else self._shell.timer_s

    def _happen(self) -> None:
        self._armed = None
        end = self._shell.next_end()
        if end is not None and end[0] <= self._timer_s:
            self._shell.finish_message(end[1])
            while self._shell.go_on_with_transfers(end[1]):
                pass
        elif self._timer_s < inf:
            self._shell.fire_timer()
        self._go_on()

    # -- answers -----------------------------------------------------------------------------------

    def _answered(self, action: Deliver | Fail | Terminate) -> None:
        sink = self._sinks.get(action.program)
        if sink is None:  # its program has left
            return
        if isinstance(action, Deliver):
            for command in action.done_before:
                sink.on_reply(command, None, True)
            sink.on_reply(action.command, action.reply, action.last)
        elif isinstance(action, Fail):
            sink.on_failure(action.command, action.error)
        else:
            sink.on_terminated(action.error)

    def _closed(self, action: ProgramClosed) -> None:
        self.figures.add(action)
