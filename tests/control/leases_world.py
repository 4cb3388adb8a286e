"""Two nodes whose engines exchange K and V: each a controller with one fake engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from control_world import ENGINE, GREEDY, World

from quire.control import Controller
from quire.control.statistics import Statistics
from quire.core import commands as c
from quire.core.batch import BatchOperation
from quire.core.config import TenantConfig
from quire.core.decoding import StopSpec
from quire.core.events import Tick
from quire.core.exchange import SendTarget
from quire.core.lease_commands import (
    CloseLease,
    Leased,
    LeaseName,
    OpenLease,
    RenewLease,
    SendPages,
    TakeLease,
)
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import TraceListener
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.network import FakeNetwork
from quire.testing.harness import CommandOutcome

KEY = bytes(range(16))
SIZE = 4
PROMPT = list(range(50, 61))
"""Two full pages of ``SIZE`` and three tokens more."""


class LeaseWorld(World):
    """One node. Its engine is in ``network``."""

    def __init__(
        self,
        network: FakeNetwork,
        tenants: tuple[TenantConfig, ...] = (),
        control: Any = None,
        listener: TraceListener | None = None,
        transfer_seed: int | None = None,
        **pool: Any,
    ) -> None:
        """``control``: what stands for its controller, and has it as ``controller``."""
        if listener is not None:
            made = Controller(SchedulerConfig(), tenants, listener=listener)
        else:
            made = control
        self._pool = fake_pool(**{"page_size": SIZE, "num_blocks": 16, **pool})
        self._network = network
        self._transfer_seed = transfer_seed
        engine = self._new_engine()
        super().__init__(engine=engine, tenants=tenants, controller=made)
        if control is not None:
            self.controller = control.controller
        self.program(form="session")

    def _new_engine(self) -> FakeEngine:
        return FakeEngine(self._pool, network=self._network, transfer_seed=self._transfer_seed)

    def restart(self) -> None:
        """The engine comes up again, after ``lose_engine``."""
        self.engine = self._new_engine()
        self.harness.start_engine(ENGINE, self.engine)

    @property
    def statistics(self) -> Statistics:
        return self.controller.statistics()

    def operations(self) -> list[BatchOperation]:
        """All that were sent to the engine."""
        return [op for one in self.harness.dispatched for op in one.batch.operations]

    def tick(self) -> None:
        self.harness.post(Tick(time_s=self.harness.now_s))

    def program(self, program: int = 1, **fields: Any) -> int:
        fields.setdefault("form", "session")
        return super().program(program, **fields)

    def open(self, tokens: Sequence[int], ttl_s: float = 60.0, **fields: Any) -> OpenLease:
        fields.setdefault("key", KEY)
        return OpenLease(id=self.id(), tokens=list(tokens), ttl_s=ttl_s, **fields)

    def lease(self, tokens: Sequence[int], ttl_s: float = 60.0, **fields: Any) -> Leased:
        """Open a lease and return what control says of it."""
        (outcome,) = self.do(1, self.open(tokens, ttl_s, **fields))
        assert isinstance(outcome.reply, Leased)
        return outcome.reply

    def computed(self, tokens: Sequence[int], first_page: int = 100) -> list[int]:
        """Pages with the K and V of ``tokens``."""
        pages = list(range(first_page, first_page + -(-len(tokens) // SIZE)))
        prefill = self.decode(pages, tokens, stop=StopSpec(max_tokens=0))
        outcome = self.do(1, self.alloc(pages), prefill)[1]
        assert outcome.status == "done", outcome.error
        return pages

    def send(
        self, pages: Sequence[int], begin: int, end: int, to: Leased, **fields: Any
    ) -> SendPages:
        """Tokens ``begin`` to ``end`` of the prompt that ``pages`` hold."""
        target = SendTarget(
            address=to.address,
            lease=to.lease.number,
            key=to.lease.key,
            first=begin - to.num_matched,
        )
        fields.setdefault("target", target)
        fields.setdefault("content", to.content)
        return SendPages(
            id=self.id(), pages=list(pages), begin=begin, num_tokens=end - begin, **fields
        )

    def take(self, lease: LeaseName, pages: Sequence[int], num_tokens: int) -> TakeLease:
        return TakeLease(id=self.id(), lease=lease, pages=list(pages), num_tokens=num_tokens)

    def renew(self, lease: LeaseName, ttl_s: float) -> RenewLease:
        return RenewLease(id=self.id(), lease=lease, ttl_s=ttl_s)

    def close(self, lease: LeaseName) -> CloseLease:
        return CloseLease(id=self.id(), lease=lease)

    def go_on(
        self, lease: LeaseName, tokens: Sequence[int], num_taken: int, first_page: int = 200
    ) -> CommandOutcome:
        """Take ``num_taken`` tokens of the lease, compute the rest of ``tokens`` and decode."""
        num_pages = -(-(len(tokens) + 8) // SIZE)
        num_mapped = -(-num_taken // SIZE)
        pages = list(range(first_page, first_page + num_pages))
        commands: list[c.Command] = [
            self.take(lease, pages[:num_mapped], num_taken),
            self.alloc(pages[num_mapped:]),
            self.decode(pages, tokens[num_taken:], position=num_taken, sampler=GREEDY),
        ]
        return self.do(1, *commands)[2]


def settle(*worlds: LeaseWorld) -> None:
    """Run all until none of them can do anything."""
    while sum(world.harness.step() for world in worlds):  # of each, in every round
        pass


def pair(**pool: Any) -> tuple[LeaseWorld, LeaseWorld]:
    """A sender and a receiver."""
    network = FakeNetwork()
    return LeaseWorld(network, **pool), LeaseWorld(network, **pool)
