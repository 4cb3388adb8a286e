"""Everything control keeps for one encoder: its instances and its waiting commands.

No result of an encoder depends on an earlier batch, so its instances are equal: a command is placed
on the pool, each of its batches on one instance. Owns what is in flight on each instance, and the
number of pending sequences of each tenant.
"""

from __future__ import annotations

from collections import deque

from quire.control.engines.encode_run import EncodePart, EncodeRun
from quire.control.engines.engine import ControlledEngine
from quire.control.programs.program import Entry
from quire.core.encoding import EncoderInfo
from quire.core.errors import ErrorRecord
from quire.core.ids import EngineId, ModelId, TenantId

MAX_IN_FLIGHT = 2
"""Batches per instance: one runs while the next one waits in the instance, so that it is never idle
between two."""


class EncodeMessage:
    """One batch in flight. ``is_short``: see ``ShortBatches``."""

    def __init__(
        self, number: int, parts: list[EncodePart], sent_s: float, *, is_short: bool
    ) -> None:
        self.number = number
        self.sent_s = sent_s
        self.is_short = is_short
        self.parts = parts
        self.num_tokens = sum([part.num_tokens for part in parts])
        self.num_sequences = sum([part.stop - part.start for part in parts])

    def entries(self) -> list[Entry]:
        """The commands in the batch, each once."""
        return list(dict.fromkeys([part.run.entry for part in self.parts]))


class EncoderInstance:
    """One process of the encoder. ``began_s``: when the first batch in flight began. ``busy_s``:
    the total time of its batches. ``num_reused_tokens``, ``cache_bytes``: see ``EncodeResult``."""

    def __init__(self, engine: EngineId) -> None:
        self.id = engine
        self.is_up = True
        self.in_flight: deque[EncodeMessage] = deque()
        self.began_s = 0.0
        self.num_batches = 0
        self.num_short_batches = 0
        self.num_sequences = 0
        self.num_tokens = 0
        self.busy_s = 0.0
        self.num_reused_tokens = 0
        self.cache_bytes = 0

    @property
    def has_room(self) -> bool:
        return self.is_up and len(self.in_flight) < MAX_IN_FLIGHT

    @property
    def is_idle(self) -> bool:
        return self.is_up and not self.in_flight

    @property
    def num_tokens_in_flight(self) -> int:
        return sum([message.num_tokens for message in self.in_flight])


class EncoderPool(ControlledEngine):
    """The instances of one encoder. ``given_up``: the error if no instance will be started again,
    else None."""

    def __init__(self, model: ModelId, info: EncoderInfo) -> None:
        super().__init__(EngineId(f"{model}#*"), model)
        self.info = info
        self.instances: dict[EngineId, EncoderInstance] = {}
        self.given_up: ErrorRecord | None = None
        self.num_pending: dict[TenantId, int] = {}
        self.num_waiting_tokens = 0
        self.next_number = 1
        self._owners: dict[TenantId, int] = {}

    def owner(self, tenant: TenantId) -> int:
        """The number under which encoders keep what they cache for ``tenant``."""
        return self._owners.setdefault(tenant, len(self._owners))

    def enter(self, run: EncodeRun) -> None:
        """Add a command that has arrived."""
        run.entry.run = run
        tenant = run.entry.program.tenant
        self.num_pending[tenant] = self.num_pending.get(tenant, 0) + run.num_sequences
        self.num_waiting_tokens += run.num_waiting_tokens

    def take(self, run: EncodeRun) -> EncodePart:
        """Take the next sequence of ``run`` for a batch."""
        part = run.take()
        self.num_waiting_tokens -= part.num_tokens
        return part

    def put_back(self, part: EncodePart) -> None:
        """Let ``part`` wait again, because its instance was lost."""
        self.num_waiting_tokens += part.num_tokens
        part.run.put_back(part)

    def abandon(self, entry: Entry) -> None:
        run, entry.run = entry.run, None
        if isinstance(run, EncodeRun):
            self.num_waiting_tokens -= run.num_waiting_tokens
            tenant = entry.program.tenant
            self.num_pending[tenant] -= run.num_sequences
            if not self.num_pending[tenant]:
                del self.num_pending[tenant]
        self.ended.append(entry)

    def check_invariants(self) -> None:
        assert all(self.num_pending.values()), "a tenant without a sequence is counted"
        assert self.num_waiting_tokens >= 0
        for instance in self.instances.values():
            assert len(instance.in_flight) <= MAX_IN_FLIGHT
            assert instance.is_up or not instance.in_flight, "a lost instance has a batch"
