"""The public ids of programs and sessions, and the seeds of programs: random."""

from __future__ import annotations

import secrets


def public_id(random: bytes | None = None) -> str:
    """An opaque name that cannot be guessed. ``random``: its bytes."""
    return f"prog-{(random or secrets.token_bytes(_ID_BYTES)).hex()}"


_ID_BYTES = 12
_SEED_BITS = 63
_TAKEN_AT_ONCE = 4096


class RandomNames:
    """Public ids and seeds. Belongs to one thread.

    Random bytes are taken for many at a time: each request for them releases the interpreter's
    lock, which is noticeable with a thousand launches in one turn.
    """

    def __init__(self) -> None:
        self._unused = b""

    def _take(self, num_bytes: int) -> bytes:
        if len(self._unused) < num_bytes:
            self._unused = secrets.token_bytes(_TAKEN_AT_ONCE)
        taken, self._unused = self._unused[:num_bytes], self._unused[num_bytes:]
        return taken

    def program_id(self) -> str:
        return public_id(self._take(_ID_BYTES))

    def seed(self) -> int:
        return int.from_bytes(self._take(8)) >> (64 - _SEED_BITS)
