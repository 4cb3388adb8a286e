"""Rows that encoders have computed for programs, so that equal sequences are computed once:
encoding is pure.

Owns what is kept, by tenant, and who waits for whom: a sequence that is being computed is not asked
for again. No tenant sees, by its result or by its time, what another one has had encoded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np

from quire.core.batch import F32
from quire.core.ids import TenantId
from quire.engine.encoders.text import EncodedText

Compute = Callable[[Sequence[EncodedText]], Awaitable[F32]]
"""Rows [S, D] of S sequences."""

_ROW_OVERHEAD_BYTES = 200
"""Of the key, the array and the table, beside the row's numbers."""


class KeptRows:
    """At most ``max_bytes`` of rows, for all tenants; 0: none are kept, and only sequences that are
    being computed are shared. Where there is no room, the row goes that was not used for longest,
    of the tenant that has most. Belongs to one loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rows: dict[TenantId, OrderedDict[bytes, F32]] = {}
        self._bytes: dict[TenantId, int] = {}
        self._under_way: dict[tuple[TenantId, bytes], asyncio.Future[F32]] = {}
        self.num_bytes = 0
        self.num_found = 0
        self.num_computed = 0

    async def rows(
        self, tenant: TenantId, encoder: str, sequences: Sequence[EncodedText], compute: Compute
    ) -> F32:
        """A row for each of ``sequences`` [S, D]; ``compute`` is asked for those that are not kept
        and that nobody computes. If who computes one fails or is cancelled, this asks itself.

        Raises:
            Exception: what ``compute`` raises.
        """
        keys = [_key(encoder, sequence) for sequence in sequences]
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
                found |= {key: one.result() for key, one in others.items() if _has_result(one)}
        return np.stack([found[key] for key in keys])

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
                self._keep(tenant, key, row)
                futures[key].set_result(row)
        finally:
            for key, future in futures.items():
                del self._under_way[tenant, key]
                future.cancel()  # nobody waits any longer, unless it has its row
        self.num_computed += len(found)
        return found

    def _kept(self, tenant: TenantId, key: bytes) -> F32 | None:
        rows = self._rows.get(tenant)
        row = None if rows is None else rows.get(key)
        if rows is not None and row is not None:
            rows.move_to_end(key)
            self.num_found += 1
        return row

    def _keep(self, tenant: TenantId, key: bytes, row: F32) -> None:
        rows = self._rows.setdefault(tenant, OrderedDict())
        if key in rows:
            return
        rows[key] = row
        self._bytes[tenant] = self._bytes.get(tenant, 0) + _size(row)
        self.num_bytes += _size(row)
        while self.num_bytes > self._max_bytes:
            most = max(self._bytes, key=lambda one: self._bytes[one])
            _, gone = self._rows[most].popitem(last=False)
            self._bytes[most] -= _size(gone)
            self.num_bytes -= _size(gone)
            if not self._rows[most]:
                del self._rows[most], self._bytes[most]


def _key(encoder: str, sequence: EncodedText) -> bytes:
    """Of what an encoder reads. Names of encoders have no zero bytes."""
    digest = hashlib.blake2b(encoder.encode() + b"\0", digest_size=16)
    digest.update(np.asarray(sequence.tokens, "<i4").tobytes())
    digest.update(np.asarray(sequence.types, "<i4").tobytes())
    return digest.digest()


def _size(row: F32) -> int:
    return row.nbytes + _ROW_OVERHEAD_BYTES


def _has_result(future: asyncio.Future[F32]) -> bool:
    return not future.cancelled() and future.exception() is None
