"""Sequences that wait for an encoder, and which of them make the next batch.

Owns the order: the tenants take turns, each tenant's own sequences stand in line. Each line has a
bound, so that a tenant that floods keeps no other out. Does no I/O.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.core.batch import F32, I32
from quire.core.encoding import EncodeBatch
from quire.core.errors import NeverWithinQuota, QuotaExceeded
from quire.core.ids import TenantId
from quire.engine.encoders.text import EncodedText


@dataclass(slots=True, eq=False)
class Job:
    """One request's sequences. ``rows`` is there once ``num_left`` is 0; ``over``: nobody waits."""

    tenant: TenantId
    texts: Sequence[EncodedText]
    rows: F32
    num_left: int
    over: bool = False


@dataclass(slots=True, eq=False)
class Item:
    """One sequence of a job. ``num_losses``: how often its encoder was lost under it."""

    job: Job
    index: int
    num_losses: int = 0

    @property
    def text(self) -> EncodedText:
        return self.job.texts[self.index]


@dataclass(slots=True)
class EncodeQueue:
    """``max_pending`` bounds what waits or runs of one tenant, ``max_batch_tokens`` a batch of
    several sequences."""

    max_pending: int
    max_batch_tokens: int
    num_pending: Counter[TenantId] = field(default_factory=Counter)
    _waiting: OrderedDict[TenantId, deque[Item]] = field(default_factory=OrderedDict)

    def add(self, job: Job) -> None:
        """Raises ``QuotaExceeded``: too many of the tenant are waiting."""
        num_pending = self.num_pending[job.tenant]
        if num_pending + len(job.texts) > self.max_pending:
            is_alone = len(job.texts) > self.max_pending
            kind = NeverWithinQuota if is_alone else QuotaExceeded
            raise kind(
                f"{num_pending} sequences of this tenant are waiting for this encoder and "
                f"{len(job.texts)} more are asked for, {self.max_pending} may: send fewer"
                f"{'' if is_alone else ', or try again'}"
            )
        self.num_pending[job.tenant] += len(job.texts)
        line = self._waiting.setdefault(job.tenant, deque())
        line.extend(Item(job, index) for index in range(len(job.texts)))

    def again(self, items: Sequence[Item]) -> None:
        """``items`` of a batch that was lost come before all others of their tenants."""
        for item in reversed(items):
            self._put_back(item)

    def end(self, job: Job) -> None:
        """Nobody waits for ``job`` any more: what of it was waiting is gone at once, so that an
        encoder that takes nothing for long cannot gather what clients have left. Idempotent."""
        if job.over:
            return
        job.over = True
        self.num_pending[job.tenant] -= len(job.texts)
        if not self.num_pending[job.tenant]:
            del self.num_pending[job.tenant]
        line = self._waiting.get(job.tenant)
        if line is None or not job.num_left:
            return
        rest = deque(item for item in line if item.job is not job)
        if rest:
            self._waiting[job.tenant] = rest
        else:
            del self._waiting[job.tenant]

    def next_items(self) -> list[Item]:
        """The next batch; empty if nothing waits."""
        items: list[Item] = []
        num_tokens = 0
        for item in self._in_turn():
            num_tokens += len(item.text.tokens)
            if items and num_tokens > self.max_batch_tokens:
                self._put_back(item)  # it begins the next batch
                break
            items.append(item)
        return items

    def _in_turn(self) -> Iterator[Item]:
        """Takes one sequence of each tenant after the other."""
        while self._waiting:
            tenant, line = self._waiting.popitem(last=False)
            item = line.popleft()
            if line:
                self._waiting[tenant] = line  # behind the others
            yield item

    def _put_back(self, item: Item) -> None:
        """It is the first of its tenant, and its tenant's turn comes first."""
        tenant = item.job.tenant
        self._waiting.setdefault(tenant, deque()).appendleft(item)
        self._waiting.move_to_end(tenant, last=False)


def batch_of(number: int, items: Sequence[Item]) -> EncodeBatch:
    def flat(parts: Iterator[tuple[int, ...]]) -> I32:
        return np.fromiter((value for part in parts for value in part), np.int32)

    return EncodeBatch(
        number=number,
        tokens=flat(item.text.tokens for item in items),
        types=flat(item.text.types for item in items),
        lengths=np.asarray([len(item.text.tokens) for item in items], np.int32),
    )
