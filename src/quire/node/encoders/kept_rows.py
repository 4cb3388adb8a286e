"""Rows that encoders have computed for programs, so that equal sequences are computed once:
encoding is pure.

Owns the kept rows, by tenant, and the computations in flight: a sequence that is being computed is
not computed again. No tenant can tell, from a result or its time, what another one has had encoded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.batch import F32
from quire.core.fair_cache import FairCache
from quire.core.ids import TenantId
from quire.engine.encoders.text import EncodedText
from quire.node.encoders.aside import aside

Compute = Callable[[Sequence[EncodedText]], Awaitable[F32]]
"""Computes the rows [S, D] of S sequences."""

_ROW_OVERHEAD_BYTES = 200
"""Memory of the key, the array and the table entry, beside the row's numbers."""


@dataclass(frozen=True, slots=True)
class KeptRowsStatistics:
    """``num_found``: rows that were kept; ``num_waited``: rows that another request was computing;
    ``num_computed``: rows that were computed. ``num_bytes``: of the rows that are kept now."""

    num_found: int
    num_waited: int
    num_computed: int
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    """A row that is being computed, for a call of this ``priority``."""

    priority: int
    row: asyncio.Future[F32]


class KeptRows:
    """At most ``max_bytes`` of rows, for all tenants; 0: none are kept, and only sequences that are
    being computed are shared. When there is no room, the least recently used row of the tenant that
    has most is dropped. Belongs to one loop."""

    def __init__(self, max_bytes: int) -> None:
        self._rows = FairCache[TenantId, F32](max_bytes)
        self._under_way: dict[tuple[TenantId, bytes], _UnderWay] = {}
        self._num_found = self._num_waited = self._num_computed = 0

    def statistics(self) -> KeptRowsStatistics:
        """Return the counts so far. Any thread may call it."""
        return KeptRowsStatistics(
            self._num_found, self._num_waited, self._num_computed, self._rows.num_bytes
        )

    async def rows(
        self,
        tenant: TenantId,
        encoder: str,
        sequences: Sequence[EncodedText],
        compute: Compute,
        priority: int = 0,
    ) -> F32:
        """A row for each of ``sequences`` [S, D]; ``compute`` gets those that are neither kept nor
        in flight. If another caller's computation fails or is cancelled, this call computes it;
        also if it is of a lower ``priority``: it may wait for as long as others have more to do.

        Raises:
            Exception: what ``compute`` raises.
        """
        keys = await aside(sequences, _keys, encoder, sequences)
        wanted = dict(zip(keys, sequences, strict=True))
        found: dict[bytes, F32] = {}
        while len(found) < len(wanted):
            missing = {key: one for key, one in wanted.items() if key not in found}
            found |= {key: row for key in missing if (row := self._kept(tenant, key)) is not None}
            missing = {key: one for key, one in missing.items() if key not in found}
            others = {
                key: one.row
                for key in missing
                if (one := self._under_way.get((tenant, key))) and one.priority >= priority
            }
            own = {key: one for key, one in missing.items() if key not in others}
            if own:
                found |= await self._computed(tenant, own, compute, priority)
            if others:
                await asyncio.wait(others.values())
                theirs = {key: one.result() for key, one in others.items() if _has_result(one)}
                self._num_waited += len(theirs)
                found |= theirs
        return await aside(sequences, _stacked, found, keys)

    async def _computed(
        self, tenant: TenantId, own: Mapping[bytes, EncodedText], compute: Compute, priority: int
    ) -> dict[bytes, F32]:
        loop = asyncio.get_running_loop()
        begun = {(tenant, key): _UnderWay(priority, loop.create_future()) for key in own}
        self._under_way |= begun
        try:
            rows = await compute(list(own.values()))
            found = {key: row.copy() for key, row in zip(own, rows, strict=True)}
            for key, row in found.items():
                self._rows.put(tenant, key, row, row.nbytes + _ROW_OVERHEAD_BYTES)
                begun[tenant, key].row.set_result(row)
        finally:
            for place, one in begun.items():
                if self._under_way.get(place) is one:  # otherwise a call of a higher priority is
                    del self._under_way[place]
                one.row.cancel()  # ends the wait for a row that has not come
        self._num_computed += len(found)
        return found

    def _kept(self, tenant: TenantId, key: bytes) -> F32 | None:
        row = self._rows.get(tenant, key)
        if row is not None:
            self._num_found += 1
        return row


def _keys(encoder: str, sequences: Sequence[EncodedText]) -> list[bytes]:
    return [_key(encoder, sequence) for sequence in sequences]


def _stacked(found: Mapping[bytes, F32], keys: Sequence[bytes]) -> F32:
    return np.stack([found[key] for key in keys])


def _key(encoder: str, sequence: EncodedText) -> bytes:
    """A digest of what the encoder reads. Names of encoders have no zero bytes."""
    digest = hashlib.blake2b(encoder.encode() + b"\0", digest_size=16)
    digest.update(np.asarray(sequence.tokens, "<i4").tobytes())
    digest.update(np.asarray(sequence.types, "<i4").tobytes())
    return digest.digest()


def _has_result(future: asyncio.Future[F32]) -> bool:
    return not future.cancelled() and future.exception() is None
