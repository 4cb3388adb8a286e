"""``World`` holds control, paced engines and virtual time, in which queries of any system are
played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from benchmarks.ayo.engines import Gathering, PacedEncoder, PacedModel, Server
from benchmarks.ayo.stated import Stated
from quire.control import Controller
from quire.core.actions import Deliver, Fail, Terminate
from quire.core.events import Event
from quire.core.ids import EngineId, ModelId
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation import Simulation, VirtualShell

EMBEDDER, RANKER = ModelId("embedder"), ModelId("ranker")
NUM_MODEL_INSTANCES = 2
"""Of each model; everything else has one (section 7.1)."""


class Asker(Protocol):
    """A program, as control's answers reach it."""

    def answered(self, action: Deliver) -> None: ...

    def failed(self, action: Fail) -> None: ...


class World:
    """Control and engines in virtual time. ``models``: by the name under which each is served,
    two instances each; beside them are an embedding model, a cross-encoder, a chunker and a
    database."""

    def __init__(self, policy: str, stated: Stated, models: Mapping[str, str]) -> None:
        self.stated = stated
        shell = VirtualShell(Controller(SchedulerConfig(policy=policy)), on_answer=self._answered)
        self.simulation = Simulation(shell)
        self.programs: dict[int, Asker] = {}
        self.engines: dict[str, PacedModel | PacedEncoder] = {}
        for name, model in models.items():
            for number in range(NUM_MODEL_INSTANCES):
                engine = PacedModel(name, stated.models[model], stated.max_sequences)
                self.engines[f"{name}#{number}"] = engine
                shell.start_engine(EngineId(f"{name}#{number}"), engine)
        encoders = {
            EMBEDDER: PacedEncoder(
                "embedding", stated.encode_s, stated.encode_one_s, stated.max_batch
            ),
            RANKER: PacedEncoder(
                "cross_encoder", stated.rank_s, stated.rank_one_s, stated.max_batch
            ),
        }
        for served, encoder in encoders.items():
            self.engines[served] = encoder
            shell.start_engine(EngineId(f"{served}#0"), encoder, served)
        self._servers: dict[str, Server] = {}
        self._gatherings: dict[ModelId, Gathering] = {}
        self._inbox: list[Event] = []

    def server(self, name: str, num_at_once: int = 1) -> Server:
        """Return the chunker, the database or an agent; it is made when it is asked for the first
        time."""
        if name not in self._servers:
            self._servers[name] = Server(self.simulation, num_at_once)
        return self._servers[name]

    def gathering(self, encoder: ModelId) -> Gathering:
        """Return what gathers the baselines' texts into batches for ``encoder``."""
        if encoder not in self._gatherings:
            stated = self.stated
            made = Gathering(self.simulation, stated.max_batch, stated.timeout_s)
            self._gatherings[encoder] = made
        return self._gatherings[encoder]

    def post(self, event: Event) -> None:
        """Post an event. Events of one moment are handled together, as a node's control thread
        takes them."""
        if not self._inbox:
            self.simulation.after(0.0, self._tell)
        self._inbox.append(event)

    def _tell(self) -> None:
        events, self._inbox = self._inbox, []
        for event in events[:-1]:
            self.simulation.shell.post(msgspec.structs.replace(event, more=True))
        self.simulation.shell.post(events[-1])

    def _answered(self, action: Deliver | Fail | Terminate) -> None:
        if isinstance(action, Fail) and action.error.code == "program_cancelled":
            self.programs[action.program].failed(action)
            return
        assert isinstance(action, Deliver), f"a paced query cannot fail: {action}"
        self.programs[action.program].answered(action)
