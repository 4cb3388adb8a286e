"""A controller with instances of one encoder, moved by hand: for tests of encoding."""

from __future__ import annotations

import numpy as np

from quire.control import Controller
from quire.core.batch import F32
from quire.core.calls import AskEncoder, Cancel
from quire.core.config import TenantConfig
from quire.core.encoding import Encode, EncodeBatch, Encoded
from quire.core.events import ProgramStarted
from quire.core.ids import CommandId, EngineId, ModelId, ProgramId, TenantId
from quire.core.policy import Policy
from quire.core.quotas import Quotas
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import TraceListener
from quire.testing import ControlHarness, FakeEncoder
from quire.testing.harness import CommandOutcome

MODEL = ModelId("embedder")


def encode_command(number: int, lengths: list[int], token: int = 7) -> Encode:
    total = sum(lengths)
    return Encode(
        id=CommandId(number),
        tokens=np.full(total, token, np.int32),
        types=np.zeros(total, np.int32),
        lengths=np.asarray(lengths, np.int32),
    )


def rows_of(outcome: CommandOutcome) -> F32:
    """The parts of an answer, put together."""
    assert outcome.status == "done", outcome
    parts = [reply for reply in outcome.replies if isinstance(reply, Encoded)]
    rows = {part.first + i: row for part in parts for i, row in enumerate(part.rows)}
    assert sorted(rows) == list(range(len(rows))), "each row comes once"
    return np.stack([rows[index] for index in sorted(rows)])


class EncodingWorld:
    """A controller with instances of one encoder, which a test moves by hand."""

    def __init__(
        self,
        num_instances: int = 1,
        *,
        weights: dict[str, float] | None = None,
        scope: str = "tenant",
        policy: str | Policy = "fcfs",
        listener: TraceListener | None = None,
        **encoder: float,
    ) -> None:
        tenants = [TenantConfig(TenantId(t), weight=w) for t, w in (weights or {}).items()]
        name = policy if isinstance(policy, str) else "fcfs"
        config = SchedulerConfig(policy=name, priority_scope=scope)  # type: ignore[arg-type]
        own = None if isinstance(policy, str) else policy
        self.controller = Controller(config, tenants, policy=own, listener=listener)
        self.harness = ControlHarness(self.controller, {})
        self.encoder = FakeEncoder(**encoder)  # type: ignore[arg-type]
        self.instances = [EngineId(f"{MODEL}#{index}") for index in range(num_instances)]
        for instance in self.instances:
            self.up(instance)
        self._numbers = iter(range(1, 1 << 30))

    def up(self, instance: EngineId) -> None:
        self.harness.start_encoder(instance, self.encoder, MODEL)

    def program(
        self, number: int, tenant: str = "a", priority: int = 0, quotas: Quotas | None = None
    ) -> ProgramId:
        program = ProgramId(number)
        self.harness.post(
            ProgramStarted(
                time_s=self.harness.now_s,
                program=program,
                tenant=TenantId(tenant),
                form="inferlet",
                name=str(number),
                priority=priority,
                quotas=quotas or Quotas(),
            )
        )
        return program

    def ask(
        self, program: ProgramId, *lengths: int, priority: int = 0, depth: int = 0, token: int = 7
    ) -> CommandOutcome:
        command = encode_command(next(self._numbers), list(lengths), token)
        self.harness.call(program, AskEncoder(MODEL, command, depth=depth, priority=priority))
        return self.harness.outcomes[program, command.id]

    def cancel(self, program: ProgramId, outcome: CommandOutcome) -> None:
        command = outcome.command.id
        self.harness.call(program, Cancel(command))

    def batches(self) -> list[tuple[EngineId, list[int]]]:
        """Where each batch went, with the lengths of its sequences."""
        return [
            (one.engine, one.batch.lengths.tolist())
            for one in self.harness.dispatched
            if isinstance(one.batch, EncodeBatch)
        ]
