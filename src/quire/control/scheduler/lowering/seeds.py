"""Seeds for samplers that name none.

Owns a counter: the same commands in the same order get the same seeds, so a replay is exact.
"""

from __future__ import annotations

import hashlib

import msgspec

from quire.core.decoding import SamplerSpec


class SeedSource:
    """32-bit seeds from SHA-256 over (base, counter)."""

    def __init__(self, base: int = 0) -> None:
        self._base = base
        self._count = 0

    def fill(self, sampler: SamplerSpec) -> SamplerSpec:
        """Return ``sampler``, with a seed if it draws and has none."""
        if sampler.greedy or sampler.seed is not None:
            return sampler
        text = f"{self._base}/{self._count}".encode()
        self._count += 1
        seed = int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
        return msgspec.structs.replace(sampler, seed=seed)
