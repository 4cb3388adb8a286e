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
from typing import TypeVar, TypeVarTuple

import numpy as np

from quire.core.batch import F32
from quire.core.fair_cache import FairCache
from quire.core.ids import TenantId
from quire.engine.encoders.text import EncodedText

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Compute = Callable[[Sequence[EncodedText]], Awaitable[F32]]
"""Computes the rows [S, D] of S sequences."""

NUM_ASIDE = 256
"""Sequences of one request from which on they are hashed, and their rows joined, in a thread. A
graph sends up to 64 requests in one turn of the loop."""
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


class KeptRows:
    """At most ``max_bytes`` of rows, for all tenants; 0: none are kept, and only sequences that are
    being computed are shared. When there is no room, the least recently used row of the tenant that
    has most is dropped. Belongs to one loop."""

    def __init__(self, max_bytes: int) -> None:
        self._rows = FairCache[TenantId, F32](max_bytes)
        self._under_way: dict[tuple[TenantId, bytes], asyncio.Future[F32]] = {}
        self._num_found = self._num_waited = self._num_computed = 0

    def statistics(self) -> KeptRowsStatistics:
        """Return the counts so far. Any thread may call it."""
        return KeptRowsStatistics(
            self._num_found, self._num_waited, self._num_computed, self._rows.num_bytes
        )

    async def rows(
        self, tenant: TenantId, encoder: str, sequences: Sequence[EncodedText], compute: Compute
    ) -> F32:
        """A row for each of ``sequences`` [S, D]; ``compute`` gets those that are neither kept nor
        in flight. If another caller's computation fails or is cancelled, this call computes it.

        Raises:
            Exception: what ``compute`` raises.
        """
        keys = await _aside(len(sequences), _keys, encoder, sequences)
        wanted = dict(zip(keys, sequences, strict=True))
        found: dict[bytes, F32] = {}
        while len(found) < len(wanted):
            found |= {key: row for key in wanted if (row := self._kept(tenant, key)) is not None}
            missing = {key: one for key, one in wanted.items() if key not in found}
            others = {
                key: self._under_way[tenant, key]
                for key in missing
                if (tenant, key) in self._under_way
            }
            own = {key: one for key, one in missing.items() if key not in others}
            if own:
                found |= await self._computed(tenant, own, compute)
            if others:
                await asyncio.wait(others.values())
                theirs = {key: one.result() for key, one in others.items() if _has_result(one)}
                self._num_waited += len(theirs)
                found |= theirs
        return await _aside(len(sequences), _stacked, found, keys)

    async def _computed(
        self, tenant: TenantId, own: Mapping[bytes, EncodedText], compute: Compute
    ) -> dict[bytes, F32]:
        loop = asyncio.get_running_loop()
        futures = {key: loop.create_future() for key in own}
        self._under_way |= {(tenant, key): future for key, future in futures.items()}
        try:
            rows = await compute(list(own.values()))
            found = {key: row.copy() for key, row in zip(own, rows, strict=True)}
            for key, row in found.items():
                self._rows.put(tenant, key, row, row.nbytes + _ROW_OVERHEAD_BYTES)
                futures[key].set_result(row)
        finally:
            for key, future in futures.items():
                del self._under_way[tenant, key]
                future.cancel()  # ends the wait for a row that has not come
        self._num_computed += len(found)
        return found

    def _kept(self, tenant: TenantId, key: bytes) -> F32 | None:
        row = self._rows.get(tenant, key)
        if row is not None:
            self._num_found += 1
        return row


async def _aside(num: int, function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call ``function``: for many sequences in a thread, because the loop is every client's."""
    if num < NUM_ASIDE:
        return function(*args)
    return await asyncio.to_thread(function, *args)


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
