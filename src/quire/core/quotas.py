"""The bounds on one program, set by tenants and manifests."""

from __future__ import annotations

import msgspec


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one program. ``None``: unbounded.

    Control enforces the first group. Its quotas of pages, embeds, queues, exports and tokens bound
    a program together with all of its descendants. The node enforces ``max_children`` (living
    descendants of a program that a client launched) and ``max_encoded_tokens`` (of a program and
    its descendants). The sandbox enforces the last group on its guests, ``max_cpu_ms`` also on a
    program together with its descendants.

    A generated token is one that a decode or ``Sample`` has chosen, or a distribution returned by
    ``GetNextDist``, from which the program chooses by itself: a generation loop costs the same in
    either form. Prompts are not counted.
    """

    max_pages: int | None = None
    max_exported_pages: int | None = None
    max_embeds: int | None = None
    max_queues: int | None = 16_384
    max_exports: int | None = 4096
    max_generated_tokens: int | None = None
    max_pending_commands: int | None = 10_000
    max_dist_top_k: int = 256

    max_children: int | None = 64
    max_encoded_tokens: int | None = None

    max_cpu_ms: int | None = None
    max_memory_bytes: int | None = None
    max_calls_per_s: int | None = None
    max_outstanding_io: int | None = None
